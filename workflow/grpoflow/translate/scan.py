"""Cutting a bash script into logical lines and words.

`shlex` splits words and takes quotes away; it knows neither line continuations, comments, variables nor line
numbers. The scanner adds them before `shlex` sees the text: it joins continued lines, cuts comments and
replaces what must survive quote removal by characters of Unicode's private use areas.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

JOIN = "\ue000"  # a line continuation that was taken out; counts lines inside a joined line
QUOTE = "\ue001"  # behind an opening quote: a word with quotes exists even if it is empty
PROTECTED = {character: chr(0xE010 + index) for index, character in enumerate("();<>|&$`")}
UNPROTECT = str.maketrans({QUOTE: "", **{code: character for character, code in PROTECTED.items()}})
EXPANSION = 0xF0000  # + index: a $NAME, ${...}, $(...) or `...`

OPERATOR = re.compile(r"&&|\|\||;;|&>>?|>>|<<<|[<>]&|[();<>|&]")
HEREDOC = re.compile(r"<<(-?)[ \t]*(['\"\\]?)(\w+)\2")
HOME = re.compile(r"~(?=[/\s;|&)]|$)")
FILES = "*"  # without quotes, for names of files that only a shell knows
ARRAY = "the parenthesis of this array"
BLANK_AFTER_BACKSLASH = re.compile(r"\\[ \t]+(?=\n)")


@dataclass(frozen=True)
class Word:
    """One word after expansion.

    unresolved: expansions that only a running shell could answer; they stand in `text` as they were written.
    assumed: expansions like ${LR:-1e-6} whose default was taken, because the script itself does not set LR.
    """

    text: str
    line: int
    unresolved: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unread:
    """Lines that are not part of the translation, and why."""

    first: int
    last: int
    text: str
    why: str


@dataclass(frozen=True)
class Expansion:
    source: str
    quoted: bool


@dataclass
class Line:
    """A logical line: continuations joined, comments cut, expansions replaced by placeholders."""

    first: int
    last: int
    text: str
    cut: bool  # bash ends it where its author did not mean it to


class _NeverClosed(Exception):
    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"{what} is never closed: bash refuses everything from here on")
        self.line = line


@dataclass
class _Draft:
    """A logical line while it is read. array: within NAME=( ... ). opened: where its last opening is."""

    out: list[str] = field(default_factory=list)
    quote: str = ""
    array: bool = False
    opened: dict[str, int] = field(default_factory=dict)
    cut: bool = False
    heredocs: list[tuple[str, bool]] = field(default_factory=list)


class Scanner:
    """Cuts a text into logical lines. `comments` maps the lines that hold nothing else to their text.

    unclosed: what is opened and never closed. All that follows belongs to it, for bash too.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.comments: dict[int, str] = {}
        self.expansions: list[Expansion] = []
        self.unread: list[Unread] = []
        self.unclosed: list[Unread] = []

    def lines(self) -> Iterator[Line]:
        while self.at < len(self.text):
            line = self._logical_line()
            if line is not None and line.text.strip(f" \t{JOIN}"):
                yield line

    def _logical_line(self) -> Line | None:
        first, draft = self.line, _Draft()
        try:
            self._characters(draft)
        except _NeverClosed as error:
            self._take(len(self.text) - self.at)
            last = self.line - self.text.endswith("\n")
            text = self.text.split("\n")[error.line - 1].strip()
            self.unclosed.append(Unread(error.line, last, text, str(error)))
            return None
        last = self.line - 1 if self.at and self.text[self.at - 1] == "\n" else self.line
        for delimiter, tabs in draft.heredocs:
            self._skip_heredoc(delimiter, tabs)
        return Line(first, last, "".join(draft.out), draft.cut)

    def _characters(self, draft: _Draft) -> None:
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == "\n" and not draft.quote and not draft.array:
                self._take(1)
                break
            if draft.quote == "'":
                draft.quote = "" if character == "'" else "'"
                draft.out.append(self._take(1, PROTECTED.get(character, character)))
            elif character == "\\":
                self._backslash(draft)
            elif character in "$`":
                draft.out.append(self._expansion(quoted=bool(draft.quote)))
            elif character == '"' or (character == "'" and not draft.quote):
                opens = not draft.quote
                draft.quote = character if opens else ""
                draft.opened["quote"] = self.line
                draft.out.append(self._take(1, character + QUOTE if opens else character))
            elif draft.quote:
                draft.out.append(self._take(1, PROTECTED.get(character, character)))
            else:
                self._unquoted(draft, character)
        if draft.quote:
            raise _NeverClosed(draft.opened["quote"], f"the quote {draft.quote}")
        if draft.array:
            raise _NeverClosed(draft.opened["array"], ARRAY)

    def _backslash(self, draft: _Draft) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        blank = BLANK_AFTER_BACKSLASH.match(self.text, self.at)
        if following == "\n":
            draft.out.append(self._take(2, JOIN))
        elif blank and not draft.quote:
            self._cut("\\ ", "a blank after the backslash")
            draft.cut = True
            self._take(len(blank[0]))
        else:
            draft.out.append(self._take(2, PROTECTED.get(following, f"\\{following}")))

    def _unquoted(self, draft: _Draft, character: str) -> None:
        out = draft.out
        if character == "#" and (not out or out[-1][-1:] in f" \t;|&({JOIN}"):
            self._comment(draft)
        elif character == "\n":  # inside NAME=( ... )
            draft.out.append(self._take(1, f" {JOIN} "))
        elif self.text.startswith(("<(", ">("), self.at):
            out.append(self._expansion(quoted=True))
        elif HOME.match(self.text, self.at) and (not out or out[-1][-1:] in f" \t=({JOIN}"):
            out.append(self._placeholder("$HOME", 1, quoted=True))
        elif character in FILES and out[-1:] not in (["."], ["]"], [")"]):  # those end with a pattern of text
            out.append(self._placeholder(character, 1, quoted=True))
        elif self.text.startswith("<<<", self.at):
            out.append(self._take(3, "<<<"))
        elif heredoc := HEREDOC.match(self.text, self.at):
            draft.heredocs.append((heredoc[3], bool(heredoc[1])))
            self._take(len(heredoc[0]))
        else:
            if character in "<>":
                _drop_descriptor(out)
            elif draft.array:
                self._in_array(draft, character)
            elif character == "(" and out[-1:] == ["="]:
                draft.array = True
                draft.opened["array"] = self.line
            out.append(self._take(1, character))

    def _in_array(self, draft: _Draft, character: str) -> None:
        """A character of NAME=( ... ), where bash knows no operators."""
        if character == ")":
            draft.array = False
        elif character in "(;|&":
            raise _NeverClosed(draft.opened["array"], ARRAY)

    def _take(self, count: int, result: str = "") -> str:
        """Move on by some characters; returns what stands for them."""
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count
        return result

    def _cut(self, text: str, what: str) -> None:
        why = f"{what}: bash ends the command here, and what follows is not part of it"
        self.unread.append(Unread(self.line, self.line, text, why))

    def _comment(self, draft: _Draft) -> None:
        end = self.text.find("\n", self.at)
        comment = self.text[self.at : len(self.text) if end < 0 else end]
        before = "".join(draft.out)
        if not before.strip():
            self.comments[self.line] = comment
        if not draft.array and before.rstrip(" \t").endswith(JOIN):
            self._cut(comment, "a comment after a continued line")
            draft.cut = True
        self._take(len(comment))

    def _expansion(self, *, quoted: bool) -> str:
        source = self._expansion_source()
        if source in ("$", '$"'):  # a lone dollar, or the translated string $"..."
            return self._take(1, PROTECTED["$"] if source == "$" else "")
        return self._placeholder(source, len(source), quoted=quoted or source.startswith("$'"))

    def _placeholder(self, source: str, length: int, *, quoted: bool) -> str:
        """Move on by some characters, which are expanded as `source`; returns what stands for them."""
        self.expansions.append(Expansion(source, quoted))
        return self._take(length, chr(EXPANSION + len(self.expansions) - 1) + JOIN * source.count("\n"))

    def _expansion_source(self) -> str:
        rest = self.text[self.at :]
        if rest.startswith("`"):
            end = rest.find("`", 1)
            if end < 0:
                raise _NeverClosed(self.line, "the `")
            return rest[: end + 1]
        if rest.startswith(("$(", "${", "<(", ">(")):
            opening, closing = ("(", ")") if rest[1] == "(" else ("{", "}")
            depth = 0
            for index, character in enumerate(rest):
                depth += (character == opening) - (character == closing)
                if depth == 0 and index > 0:
                    return rest[: index + 1]
            raise _NeverClosed(self.line, f"the {rest[:2]}")
        if rest.startswith("$'"):
            found = re.match(r"\$'(?:[^'\\]|\\.)*'", rest, re.DOTALL)
            return found[0] if found else "$"
        if rest.startswith('$"'):
            return '$"'
        found = re.match(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])", rest)
        return found[0] if found else "$"

    def _skip_heredoc(self, delimiter: str, tabs: bool) -> None:
        first = self.line
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            content = self.text[self.at : end]
            self._take(end - self.at + 1)
            if (content.lstrip("\t") if tabs else content) == delimiter:
                break
        self.unread.append(
            Unread(first, self.line - 1, f"<<{delimiter}", "the text of a here-document is not looked at")
        )


def _drop_descriptor(out: list[str]) -> None:
    """Take back the 2 of `2>log`: it names a file descriptor and is not a word."""
    digits = 0
    while digits < len(out) and out[-1 - digits].isdigit():
        digits += 1
    if digits and (digits == len(out) or out[-1 - digits][-1:] in f" \t{JOIN}"):
        del out[-digits:]


def split_words(line: Line) -> list[Word]:
    """Split a logical line; operators become words of their own, every word knows its line.

    Raises ValueError (from shlex) for an unfinished quote or escape.
    """
    lexer = shlex.shlex(line.text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    number = line.first
    tokens: list[Word] = []
    for token in lexer:
        leading = len(token) - len(token.lstrip(JOIN))
        text = token.replace(JOIN, "")
        if text:
            pieces = [text] if text.strip("();<>|&") else OPERATOR.findall(text)
            tokens += [Word(piece, number + leading) for piece in pieces]
        number += token.count(JOIN) + text.count("\n")
    return tokens
