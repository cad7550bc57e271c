"""A script by which bash and zsh complete `opencrate`: commands, recipes, and the options that a help text lists."""

from collections.abc import Iterable, Mapping

_SCRIPT = r"""
_opencrate() {
    local word=${COMP_WORDS[COMP_CWORD]} words= command=("${COMP_WORDS[@]:0:2}")
    if [[ $COMP_CWORD == 1 ]]; then
        words="COMMANDS --help --version"
    elif [[ $word == -* ]]; then
        [[ ${COMP_WORDS[2]} == -* ]] || command+=("${COMP_WORDS[2]}")
        words=$("${command[@]}" --help 2>/dev/null |
            sed -nE 's/^[^ a-z]* {1,2}(-h, )?(--[a-zA-Z._-]+)(, (--[a-zA-Z._-]+))?.*/\2 \4/p')
    elif [[ $COMP_CWORD == 2 ]]; then
        case ${COMP_WORDS[1]} in
CASES
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _opencrate opencrate
"""


def script(shell: str, commands: Iterable[str], second: Mapping[str, Iterable[str]]) -> str:
    """The script; `second` has the words that may follow a command. Where nothing fits, the shell completes files."""
    cases = "\n".join(f'            {command}) words="{" ".join(words)}" ;;' for command, words in second.items())
    text = _SCRIPT.strip().replace("COMMANDS", " ".join(commands)).replace("CASES", cases)
    return "autoload -U +X bashcompinit && bashcompinit\n" * (shell == "zsh") + text
