"""Each decode loop as its users call it, uninstrumented, behind one protocol (:class:`DecodeLoop`). No MLX here."""

from mlxcel_engine.bench.loops.base import DecodeLoop, LoopSettings, Prompts, Session, StreamTokens

__all__ = ["DecodeLoop", "LoopSettings", "Prompts", "Session", "StreamTokens"]
