"""Words marked as sclite's options -D and -F read them."""

from asr_train.score.edits import Marked


def read_marks(word: str) -> str:
    """Return `word`, as Marked if sclite -D -F treats it so."""
    marked = Marked(word)
    return marked if marked.optional or marked.partial else word
