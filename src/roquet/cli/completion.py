"""`roquet completion`: a script with which a shell completes commands and options. argparse makes none; the parsers do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from roquet.cli.options import Commands, command
from roquet.cli.render import emit

BASH = """\
_roquet() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} place="" one
    for one in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$place $one" in
{places}
        esac
    done
    case "$place" in
{words}
    esac
    if [[ -z $word || $word == -* || -z $place ]]; then COMPREPLY=($(compgen -W "$words" -- "$word"))
    else COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word")); fi
}}
complete -F _roquet roquet
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n" + BASH


def add_commands(commands: Commands) -> None:
    parser = command(
        commands,
        "completion",
        "print a script that completes commands and options in your shell",
        """
        roquet completion bash    for now: eval "$(roquet completion bash)"; for good: the same line in ~/.bashrc
        roquet completion zsh     the same in ~/.zshrc
        roquet completion fish    write it to ~/.config/fish/completions/roquet.fish
        """,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=print_script)


def print_script(arguments: argparse.Namespace) -> int:
    from roquet.cli.main import build_parser

    found = dict(places(build_parser()))
    emit((fish(found) if arguments.shell == "fish" else bash(found, ZSH if arguments.shell == "zsh" else BASH)).rstrip())
    return 0


def places(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """("topic", "create") -> what may stand behind it, and what that does."""
    words: dict[str, str] = {}
    below: list[tuple[tuple[str, ...], argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            about = {one.dest: one.help or "" for one in action._choices_actions}
            words |= {name: about.get(name, "") for name in action.choices}
            below += [((*path, name), one) for name, one in action.choices.items()]
        elif action.help != argparse.SUPPRESS:
            words |= {name: action.help or "" for name in action.option_strings if name.startswith("--")}
            if action.choices is not None and not action.option_strings:
                words |= {str(choice): "" for choice in action.choices}
    yield path, words
    for further, one in below:
        yield from places(one, further)


def bash(found: dict[tuple[str, ...], dict[str, str]], script: str) -> str:
    named = {"".join(f" {word}" for word in path): words for path, words in found.items()}
    steps = [f'            "{name}") place="{name}" ;;' for name in named if name]
    words = [f'        "{name}") local words="{" ".join(inside)}" ;;' for name, inside in named.items()]
    return script.format(places="\n".join(steps), words="\n".join(words))


def fish(found: dict[tuple[str, ...], dict[str, str]]) -> str:
    lines = ["complete -c roquet -f"]
    for path, words in found.items():
        inner = " ".join(word for word in words if not word.startswith("-"))
        place = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in path) or "__fish_use_subcommand"
        if path and inner:
            place += f"; and not __fish_seen_subcommand_from {inner}"
        for word, about in words.items():
            what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            said = about.split("(")[0].strip().replace("\\", "").replace("'", "").replace("%%", "%")
            lines.append(f"complete -c roquet -n '{place}' {what} -d '{said}'")
    return "\n".join(lines)
