"""What an error of a rank means for its job, in the words of the controller's budgets; without torch.

NonFiniteError                                       nan        once more from the newest checkpoint
MemoryError, "out of memory" of CUDA, NCCL or torch  memory     a layout that takes less
another RayplaneError                                user       the job's own mistake: the end
anything else                                        rank       once more from the newest checkpoint
"""

from __future__ import annotations

from rayplane.errors import NonFiniteError, RayplaneError

NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
"""How CUDA, NCCL, torch's allocators and the kernel say that there is too little."""


def kind_of(error: Exception) -> str:
    """nan, memory, user or rank."""
    match error:
        case NonFiniteError():
            return "nan"
        case RayplaneError():
            return "user"
        case MemoryError():
            return "memory"
        case RuntimeError() | OSError() if any(words in str(error).lower() for words in NO_MEMORY):
            return "memory"
        case _:
            return "rank"
