"""Reading a bash script without executing it: assignments are followed, commands collected.

What is not understood ends up in `Script.unread`, never nowhere.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from . import slurm
from .scan import EXPANSION, OPERATOR, UNPROTECT, Expansion, Line, Scanner, Unread, Word, split_words

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
PARAMETER = re.compile(r"\$\{([A-Za-z_]\w*)(?:(:?[-=])(.*))?\}|\$([A-Za-z_]\w*)", re.DOTALL)
ARRAY = re.compile(r"\$\{([A-Za-z_]\w*)\[(@|\*|\d+)\]\}")
REDIRECTIONS = (">", ">>", "<", ">&", "<&", "&>", "&>>", "<<<")

OPENING = ("if", "for", "while", "until", "case", "select", "function")
SEPARATING = ("then", "do", "else", "!")
CLOSING = ("fi", "done", "esac", "}")
TESTS = ("[", "[[", "test")


@dataclass(frozen=True)
class Command:
    """A simple command: its words and the environment it is given (exported variables and prefixes).

    condition: where the condition stands under which alone it runs, "" if it always runs. step: the options
    of the Slurm step within whose text it stands, {} outside of one.
    """

    words: tuple[Word, ...]
    env: Mapping[str, Word]
    first: int
    last: int
    text: str
    condition: str = ""
    step: Mapping[str, slurm.Option] = field(default_factory=dict)


@dataclass(frozen=True)
class Script:
    """A script as far as it can be known without running it.

    commented: what the comments would be as commands; prose among them, too.
    not_exported: variables that were set without `export` and are therefore not seen by any program.
    unclosed: what is opened and never closed; it is not among `unread`.
    """

    commands: tuple[Command, ...]
    commented: tuple[Command, ...]
    header: Mapping[str, slurm.Option]
    not_exported: Mapping[str, Word]
    unread: tuple[Unread, ...]
    unclosed: tuple[Unread, ...]


def read_script(text: str) -> Script:
    """Read a bash script; never raises for its content."""
    unread: list[Unread] = []
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
        why = "Windows line ends: bash takes the carriage return for a part of the last word"
        unread.append(Unread(1, 1, "(all lines)", why))
    scanner = Scanner(text)
    lines = list(scanner.lines())
    header = {}
    for option in slurm.read_header(_header_comments(scanner, lines, unread)):
        header[option.name] = option
    variables = {name: Word(*value) for name, value in slurm.variables(header).items()}
    reader = _Reader(text.split("\n"), scanner.expansions, dict(variables), header)
    for line in lines:
        reader.read(line)
    for block in reader.blocks:
        unread.append(Unread(block, block, reader.source(block), "this block is never closed"))
    return Script(
        commands=tuple(reader.commands),
        commented=tuple(_commented_commands(scanner.comments, unread)),
        header=header,
        not_exported={
            name: value
            for name, value in reader.variables.items()
            if name not in {*reader.exported, *variables} and isinstance(value, Word)
        },
        unclosed=(*scanner.unclosed, *reader.unclosed),
        unread=tuple(sorted([*unread, *scanner.unread, *reader.unread], key=lambda item: item.first)),
    )


def _header_comments(scanner: Scanner, lines: list[Line], unread: list[Unread]) -> dict[int, str]:
    """The `#SBATCH` comments that sbatch reads: it stops at the first command."""
    end = min((line.first for line in lines), default=scanner.line + 1)
    found = {}
    for number, text in scanner.comments.items():
        if re.match(r"##+\s*SBATCH", text):
            unread.append(Unread(number, number, text, "a Slurm option that is commented out"))
        elif text.startswith("#SBATCH") and number > end:
            unread.append(
                Unread(number, number, text, f"sbatch reads no option after the first command (line {end})")
            )
        elif text.startswith("#SBATCH"):
            found[number] = text
    return found


def _commented_commands(comments: Mapping[int, str], unread: list[Unread]) -> Iterator[Command]:
    """Read each run of comments that are joined by backslashes as if it were not commented out."""
    waiting: list[str] = []
    for number, text in comments.items():
        content = text.lstrip("#").strip()
        if text.startswith(("#!", "#SBATCH", "##SBATCH")):
            continue
        waiting.append(content)
        if content.endswith("\\") and number + 1 in comments:
            continue
        first = number - len(waiting) + 1
        if waiting[0].startswith("--"):
            why = "arguments that are commented out have no effect"
            unread.append(Unread(first, number, " ".join(waiting), why))
        scanner = Scanner("\n" * (first - 1) + "\n".join(waiting).rstrip("\\"))
        reader = _Reader(scanner.text.split("\n"), scanner.expansions, {})
        for line in scanner.lines():
            reader.read(line)
        yield from reader.commands
        waiting = []


_Value = Word | tuple[Word, ...]


@dataclass
class _Reader:
    """Follows assignments and collects simple commands, line after line."""

    source_lines: list[str]
    expansions: list[Expansion]
    variables: dict[str, _Value]
    header: Mapping[str, slurm.Option] = field(default_factory=dict)
    step: Mapping[str, slurm.Option] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    commands: list[Command] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    unclosed: list[Unread] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    cut_at: int = 0

    def source(self, first: int, last: int | None = None) -> str:
        """The text of some lines, on one line."""
        return " ".join(line.strip() for line in self.source_lines[first - 1 : last or first])

    def read(self, line: Line) -> None:
        try:
            tokens = split_words(line)
        except ValueError as error:
            self._skip(line.first, line.last, f"not understood: {error}")
            return
        simple: list[Word] = []
        previous, conditional = "", False
        index = 0
        while index < len(tokens):
            token = tokens[index]
            index += 1
            if not OPERATOR.fullmatch(token.text):
                simple.append(token)
                continue
            if token.text in REDIRECTIONS:
                target = self._text(tokens[index]) if index < len(tokens) else Word("", token.line)
                index += 1
                if token.text not in (">&", "<&"):
                    # the text behind <<< may be a key for a login
                    text = token.text if token.text == "<<<" else f"{token.text} {target.text}"
                    self.unread.append(
                        Unread(token.line, token.line, text, "redirection: not part of the translation")
                    )
                continue
            if token.text == "(" and simple and ASSIGNMENT.fullmatch(simple[-1].text):
                end = next((at for at in range(index, len(tokens)) if tokens[at].text == ")"), len(tokens))
                self._assign_array(simple.pop(), tokens[index:end], bool(conditional or self.blocks))
                index = end + 1
                continue
            if (
                token.text == "("
                and len(simple) == 1
                and tokens[index : index + 1]
                and tokens[index].text == ")"
            ):
                self._skip(
                    simple.pop().line, token.line, "a function: its commands are read as if it were called"
                )
                index += 1
                continue
            test = bool(simple) and simple[0].text in TESTS
            self._simple(simple, conditional)
            simple = []
            # after `[ ... ] &&` and after `||` a command may not run
            conditional = token.text == "||" or (
                token.text == "&&" and (test or (conditional and previous == "&&"))
            )
            previous = token.text
        self._simple(simple, conditional)
        self.cut_at = line.last if line.cut else 0

    def _skip(self, first: int, last: int, why: str) -> None:
        self.unread.append(Unread(first, last, self.source(first, last), why))

    def _simple(self, tokens: list[Word], conditional: bool) -> None:
        while tokens and tokens[0].text in (*SEPARATING, *CLOSING, "{"):
            keyword = tokens.pop(0)
            if keyword.text in CLOSING and self.blocks:
                self.blocks.pop()
            elif keyword.text == "{":
                self.blocks.append(keyword.line)
        if not tokens:
            return
        first, last = tokens[0].line, tokens[-1].line
        if tokens[0].text in OPENING:
            self.blocks.append(first)
            if tokens[0].text in ("for", "select") and len(tokens) > 1:
                self._forget(tokens[1].text, first)
            why = "not evaluated: the commands of this block are read as if they ran once"
            self._skip(first, last, why)
            return
        if tokens[0].text == "elif":
            self._skip(first, last, "not evaluated: the commands of this block are read as if they ran once")
            return
        doubtful = bool(conditional or self.blocks)
        prefix: dict[str, Word] = {}
        while tokens and (found := ASSIGNMENT.match(tokens[0].text)):
            token = tokens.pop(0)
            prefix[found[1]] = self._assigned(found, token)
        if not tokens:
            for name, value in prefix.items():
                self._set(name, value, doubtful)
            return
        words = tuple(word for token in tokens for word in self._expand(token))
        if words and not self._builtin(words, doubtful):
            self._command(words, prefix, first, max(last, words[-1].line), conditional)

    def _command(
        self, words: tuple[Word, ...], prefix: dict[str, Word], first: int, last: int, conditional: bool
    ) -> None:
        if words[0].text.startswith("--"):
            after = f" (see line {self.cut_at})" if self.cut_at else ""
            self._skip(first, last, f"arguments without a command: bash would run them as a program{after}")
            return
        inner = next((at for at, word in enumerate(words[:-1]) if word.text in ("-c", "-lc")), 0)
        if inner and words[inner - 1].text.rpartition("/")[2] in ("bash", "sh"):
            self._nested(words[inner + 1], prefix, words[: inner + 1])
            return
        exported = {
            name: value
            for name, value in self.variables.items()
            if name in self.exported and isinstance(value, Word)
        }
        condition = (
            f"line {self.blocks[0]}" if self.blocks else "a condition on this line" if conditional else ""
        )
        first = min([first, *(word.line for word in prefix.values())])
        text = self.source(first, last)
        self.commands.append(Command(words, exported | prefix, first, last, text, condition, self.step))

    def _nested(self, script: Word, prefix: dict[str, Word], shell_words: tuple[Word, ...]) -> None:
        """Read the text that `bash -c` is given; in a step of Slurm its variables are those of the step."""
        shell = f"{shell_words[0].text} ... -c"
        step = self.step
        if shell_words[0].text.rpartition("/")[2] == "srun":
            step = slurm.step_of(self.header, shell_words)
        self.unread.append(
            Unread(script.line, script.line, shell, "the launcher; the commands in its text are read")
        )
        scanner = Scanner("\n" * (script.line - 1) + script.text)
        ours = {name: Word(*value) for name, value in slurm.variables(step).items()}
        variables: dict[str, _Value] = {**self.variables, **ours, **prefix}
        reader = replace(self, expansions=scanner.expansions, variables=variables, step=step)
        reader.exported = {*self.exported, *prefix}
        for line in scanner.lines():
            reader.read(line)
        self.unread += scanner.unread
        self.unclosed += scanner.unclosed

    def _builtin(self, words: tuple[Word, ...], doubtful: bool) -> bool:
        """Whether the command was one of the shell's own that changes variables."""
        program, arguments = words[0].text, words[1:]
        if program in ("export", "declare", "typeset", "readonly", "local"):
            exports = program == "export" or any(word.text == "-x" for word in arguments)
            for word in arguments:
                found = ASSIGNMENT.match(word.text)
                if found:
                    self._set(found[1], replace(word, text=word.text[found.end() :]), doubtful)
                name = found[1] if found else word.text
                if exports and NAME.fullmatch(name):
                    self.exported.add(name)
            return True
        if program == "unset":
            for word in arguments:
                self.variables.pop(word.text, None)
            return True
        return False

    def _set(self, name: str, value: _Value, doubtful: bool) -> None:
        if doubtful:
            line = value.line if isinstance(value, Word) else self.blocks[-1] if self.blocks else 0
            self._forget(name, line)
            self._skip(line, line, f"{name} is set under a condition, which is not evaluated")
        else:
            self.variables[name] = value

    def _forget(self, name: str, line: int) -> None:
        self.variables[name] = Word(f"${name}", line, (f"${name}",))

    def _assigned(self, found: re.Match[str], token: Word) -> Word:
        value = self._text(replace(token, text=token.text[found.end() :]))
        before = self.variables.get(found[1])
        if found[2] and isinstance(before, Word):
            return _joined([before, value])
        return value

    def _assign_array(self, name_token: Word, tokens: list[Word], doubtful: bool) -> None:
        found = ASSIGNMENT.fullmatch(name_token.text)
        if found is None:
            raise AssertionError(name_token)
        words = tuple(word for token in tokens for word in self._expand(token))
        before = self.variables.get(found[1], ())
        if found[2]:
            words = ((before,) if isinstance(before, Word) else before) + words
        self._set(found[1], words, doubtful)

    def _text(self, token: Word) -> Word:
        """Expand without splitting, as bash does on the right of `=`."""
        parts = [self._part(character, token.line) for character in token.text]
        flat = [word for part, _ in parts for word in (part if isinstance(part, tuple) else (part,))]
        return _joined([Word("", token.line), *flat])

    def _expand(self, token: Word) -> list[Word]:
        """Expand a word; an unquoted variable may become several words, or none."""
        words: list[Word] = []
        current: Word | None = None
        for character in token.text:
            part, splits = self._part(character, token.line)
            if isinstance(part, tuple):
                pieces = list(part)
            elif splits and not any(" " in source for source in part.unresolved):
                pieces = [_piece(part, text) for text in part.text.split()]
            else:
                pieces = [part]
            for number, piece in enumerate(pieces):
                if number and current is not None:
                    words.append(current)
                    current = None
                current = _joined([current, piece]) if current else replace(piece, line=token.line)
        return [*words, current] if current else words

    def _part(self, character: str, line: int) -> tuple[_Value, bool]:
        """What one character of a token stands for, and whether it splits into words."""
        index = ord(character) - EXPANSION
        if index < 0:
            return Word(character.translate(UNPROTECT), line), False
        expansion = self.expansions[index]
        value = self._resolve(expansion.source, line)
        if isinstance(value, tuple) and expansion.quoted and "[*]" in expansion.source:
            return _joined(list(value), " "), False
        return value, not expansion.quoted

    def _resolve(self, source: str, line: int) -> _Value:
        unknown = Word(source, line, (source,))
        if source.startswith("$'"):
            body = source[2:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
            return Word(body, line)
        expression = source[3:-2] if source.startswith("$((") else _expr(source)
        if expression:
            number = self._arithmetic(expression)
            return unknown if number is None else Word(str(number), line)
        if found := ARRAY.fullmatch(source):
            return self._element(found[1], found[2], line) or unknown
        if found := PARAMETER.fullmatch(source):
            return self._parameter(found, line) or unknown
        return unknown

    def _element(self, name: str, index: str, line: int) -> _Value | None:
        """${NAME[@]} or ${NAME[0]}, if the array is known."""
        array = self.variables.get(name)
        if not isinstance(array, tuple):
            return None
        if not index.isdigit():
            return tuple(replace(word, line=line) for word in array)
        before = array[: int(index) + 1]  # an open element may be several: its number is not known then
        if int(index) >= len(array) or any(word.unresolved for word in before):
            return None
        return replace(array[int(index)], line=line)

    def _parameter(self, found: re.Match[str], line: int) -> Word | None:
        """$NAME, ${NAME} or ${NAME:-default}, if it is known."""
        value = self.variables.get(found[1] or found[4])
        value = value[0] if isinstance(value, tuple) and value else value
        if isinstance(value, Word) and not (value.text == "" and found[2] in (":-", ":=")):
            return replace(value, line=line)
        if not found[2]:
            return None
        default = _read_value(found[3], self.variables)
        return replace(default, line=line, assumed=(*default.assumed, found[0]))

    def _arithmetic(self, expression: str) -> int | None:
        """The value of $((...)) over known integers; None for anything else."""

        def known(found: re.Match[str]) -> str:
            value = self.variables.get(found[1])
            return value.text if isinstance(value, Word) and value.text.isdigit() else found[0]

        text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", known, expression)
        try:
            return _calculate(ast.parse(text.replace("/", "//").strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError):
            return None


def _expr(source: str) -> str:
    """The expression of $(expr 16 / $N), which is arithmetic and no program that matters."""
    found = re.fullmatch(r"(?:\$\(|`)\s*expr\s+(.*?)\s*[)`]", source, re.DOTALL)
    return found[1].replace("\\*", "*").replace("'*'", "*") if found else ""


OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _calculate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and (operation := OPERATIONS.get(type(node.op))):
        return operation(_calculate(node.left), _calculate(node.right))
    raise ValueError(ast.dump(node))


def _read_value(text: str, variables: Mapping[str, _Value]) -> Word:
    """Expand the default in ${NAME:-default}."""
    scanner = Scanner(f"V={text}")
    reader = _Reader([text], scanner.expansions, dict(variables))
    for line in scanner.lines():
        reader.read(line)
    value = reader.variables.get("V")
    return value if isinstance(value, Word) else Word(text, 1)


def _piece(word: Word, text: str) -> Word:
    return replace(word, text=text, unresolved=tuple(source for source in word.unresolved if source in text))


def _joined(words: list[Word], separator: str = "") -> Word:
    return Word(
        separator.join(word.text for word in words),
        words[0].line,
        tuple(item for word in words for item in word.unresolved),
        tuple(item for word in words for item in word.assumed),
    )
