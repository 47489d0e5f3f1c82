"""Taking secrets out of a script, before anything else looks at it.

A script is read to be shown again, as a command or in a report: what it says under the name of a secret, in a
login, in the user part of a URL or as the URL of a webhook is replaced by `HIDDEN`. A reference to a variable
stays, and the value of that variable is hidden in its stead.
"""

from __future__ import annotations

import re

from grpoflow.config.secrets import names_a_secret

HIDDEN = "***"

_START = re.compile(
    r"(?<![\w-])(?P<variable>[A-Za-z_]\w*)\+?="
    r"|(?<![\w-])--?(?P<option>[A-Za-z][\w-]*)(?:=|(?:[ \t]|\\\n)+(?!-))"
    r"|\$\{(?P<default>[A-Za-z_]\w*):?[-=+?]"
    r"|(?P<key>\\?[\"'])(?P<json>\w+)(?P=key)\s*:\s*"
    r"(?=(?P<literal>\\\"[^\"\\]*\\\"|\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,}]*))"
    r"|(?P<login>(?<![\w/.-])login)(?=[ \t\\])"
    r"|(?P<header>authorization:\s*(?:\w+\s+(?=[^\s\"']))?)"
    r"|://(?P<user>[^\s/@\"'`]+(?=@))"
    r"|(?<![\w-])-(?P<short>[up])(?=[\"'\w$])"
    r"|(?P<webhook>\bhttps?://(?=[^\s\"'`]*hook)[^\s/\"'`]*/)",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"(?P<quote>[\"']?)\$(?:\{(?P<name>\w+)(?::?[-=?])?\}|(?P<bare>\w+))(?P=quote)")
# options that are a secret behind one program alone, everybody has a -u and a -p: what stands before them
_CURL = re.compile(r"(?<![\w.-])curl\s")
_SSHPASS = re.compile(r"(?<![\w.-])sshpass(?:\s+-\S+)*\s+$")
_OF_PROGRAM = {"u": _CURL, "user": _CURL, "proxy-user": _CURL, "p": _SSHPASS}
_COMMAND_ENDS = re.compile(r"(?<!\\)\n|[;&|()`]")
_GAP = re.compile(r"(?:[ \t]|\\\n)+")
_ENDS = " \t\n;&|()<>"


def is_secret(name: str) -> bool:
    """Whether a variable or an argument of this name is a secret, as the URL of a webhook is."""
    return names_a_secret(name) or "WEBHOOK" in name.upper()


def hide_secrets(text: str) -> str:
    """The script with `HIDDEN` in place of its secrets; lines, quotes and operators stay where they are."""
    names: set[str] = set()
    while True:
        hider = _Hider(text, names)
        hidden = hider.hidden()
        if hider.referenced <= names:
            return hidden
        names |= hider.referenced


class _Hider:
    """One pass. names: variables that are secrets as a secret refers to them; referenced: those found now."""

    def __init__(self, text: str, names: set[str]) -> None:
        self.text = text
        self.names = names
        self.referenced: set[str] = set()
        self.quotes = _quotes(text)
        self.done = 0
        self.out: list[str] = []

    def hidden(self) -> str:
        while found := _START.search(self.text, self.done):
            self._keep(found.end())
            self._value(found)
        self._keep(len(self.text))
        return "".join(self.out)

    def _value(self, found: re.Match[str]) -> None:
        """Hide what follows a start, if it is a secret."""
        name = found["variable"] or found["default"] or found["json"] or found["option"] or ""
        if found["user"]:
            self._user(found)
        elif found["webhook"]:
            self._hide(self._word_end())
        elif found["login"]:
            self._login()
        elif found["header"] or self._of_program(found, found["short"] or found["option"] or ""):
            self._hide(self._word_end())
        elif not (is_secret(name.replace("-", "_")) or (found["option"] is None and name in self.names)):
            return
        elif found["default"]:
            self._hide(_closing(self.text, found.start() + 1, "{", "}") - 1)
        elif found["json"]:
            self._hide(found.end("literal"))
        else:
            self._hide(self._word_end())

    def _of_program(self, found: re.Match[str], option: str) -> bool:
        """Whether the option is one of those that `_OF_PROGRAM` knows, in a command of that program."""
        program = _OF_PROGRAM.get(option)
        before = _COMMAND_ENDS.split(self.text[: found.start()])[-1] if program else ""
        return program is not None and program.search(before) is not None

    def _keep(self, end: int) -> None:
        self.out.append(self.text[self.done : end])
        self.done = end

    def _hide(self, end: int) -> None:
        """Replace the text up to `end`, with the line ends that it has; a reference and nothing stay."""
        value = self.text[self.done : end]
        if found := _REFERENCE.fullmatch(value):
            self.referenced.add(found["name"] or found["bare"])
            self._keep(end)
        elif not value.strip("\"'") or value == HIDDEN:
            self._keep(end)
        elif value.startswith("(") and value.endswith(")"):
            self._keep(self.done + 1)
            self._replace(end - 1)
        else:
            self._replace(end)

    def _replace(self, end: int) -> None:
        lines = self.text.count("\n", self.done, end)
        quote = '"' if lines and self.quotes[self.done] == " " else ""
        self.out.append(quote + HIDDEN + "\n" * lines + quote)
        self.done = end

    def _user(self, found: re.Match[str]) -> None:
        """The part of a URL before the host."""
        parts = [_REFERENCE.fullmatch(part) for part in found["user"].split(":")]
        names = {part["name"] or part["bare"] for part in parts if part}
        if all(parts):
            self.referenced |= names
            return
        self.out[-1] = self.out[-1].removesuffix(found["user"]) + HIDDEN

    def _login(self) -> None:
        """All words of a login but its options: which one the key is depends on the program."""
        while gap := _GAP.match(self.text, self.done):
            self._keep(gap.end())
            end = self._word_end()
            if end == self.done:
                return
            option = re.match(r"-[\w-]*=?", self.text[self.done : end])
            self._keep(self.done + (option.end() if option else 0))
            self._hide(end)

    def _word_end(self) -> int:
        """Where the word of the shell ends that starts here, perhaps in the middle of a quoted text."""
        text, at = self.text, self.done
        outer = self.quotes[at : at + 1].strip()
        if not outer and text[at : at + 1] == "(":
            return _closing(text, at, "(", ")")
        while at < len(text) and text[at] not in _ENDS and text[at] != outer:
            character = text[at]
            if character == "\\":
                escaped = text[at + 1 : at + 2]
                if escaped == "\n":
                    break
                closing = text.find('\\"', at + 2) if outer == '"' and escaped == '"' else -1
                at = closing + 2 if closing > 0 else at + 2
            elif character in "'\"`" and (closing := _closing_quote(text, at)):
                at = closing
            elif text.startswith(("$(", "${"), at):
                at = _closing(text, at + 1, text[at + 1], ")" if text[at + 1] == "(" else "}")
            else:
                at += 1
        return min(at, len(text))


def _closing(text: str, at: int, opening: str, closing: str) -> int:
    """Behind the bracket that closes the one at `at`; the end of the line where there is none."""
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] == opening) - (text[index] == closing)
        if depth == 0:
            return index + 1
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _closing_quote(text: str, at: int) -> int:
    """Behind the quote that closes the one at `at`; 0 where there is none."""
    quote = text[at]
    inner = r"[^']*" if quote == "'" and text[at - 1 : at] != "$" else rf"(?:[^{quote}\\]|\\.)*"
    found = re.compile(f"{quote}{inner}{quote}", re.DOTALL).match(text, at)
    return found.end() if found else 0


def _quotes(text: str) -> str:
    """For every character the quote that it stands in, or a blank; quotes in comments are none."""
    quote, out, at = " ", [], 0
    while at < len(text):
        character = text[at]
        if quote == " " and character == "#" and text[at - 1 : at] in ("", " ", "\t", "\n", ";"):
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            out.append(" " * (end - at))
            at = end
            continue
        if character == "\\" and quote != "'":
            out.append(quote * 2)
            at += 2
            continue
        out.append(quote)
        if character in "'\"" and quote in (" ", character):
            quote = character if quote == " " else " "
        at += 1
    return "".join(out)
