"""The types of the functions that make arrays. Their decorators return a function as it is, for type checkers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, SupportsIndex, TypedDict, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import _native
from ._arrays import Array

Size = int | str
"""A size in bytes, or as text: ``"512 MiB"``, ``"8GiB"``, ``"64k"``. Units are powers of two."""

CopyGrain = Literal["auto", "page", "block"]

S = TypeVar("S", bound=np.generic)
DType = type[S] | np.dtype[S]
Floats = NDArray[np.float64]
Shape = SupportsIndex | Sequence[SupportsIndex]
Order = Literal["C", "F"]
Like = Literal["C", "F", "A", "K"]


class Options(TypedDict, total=False):
    """The options of `Pool.empty`."""

    reserve: bool
    max_cow_bytes: Size | None
    copy_grain: CopyGrain
    calls_wait: bool
    operations: _native.Operations | None


class LikeOptions(Options, total=False):
    """The options of `Pool.empty_like`."""

    shape: Shape | None


class OfShape(Protocol):
    @overload
    def __call__(self, shape: Shape, dtype: None = ..., order: Order = ..., **options: Unpack[Options]) -> Floats: ...
    @overload
    def __call__(self, shape: Shape, dtype: DType[S], order: Order = ..., **options: Unpack[Options]) -> NDArray[S]: ...
    @overload
    def __call__(self, shape: Shape, dtype: DTypeLike, order: Order = ..., **options: Unpack[Options]) -> Array: ...


class OfValue(Protocol):
    @overload
    def __call__(
        self, shape: Shape, fill_value: Any, dtype: DType[S], order: Order = ..., **options: Unpack[Options]
    ) -> NDArray[S]: ...
    @overload
    def __call__(
        self, shape: Shape, fill_value: Any, dtype: DTypeLike = ..., order: Order = ..., **options: Unpack[Options]
    ) -> Array: ...


class OfValues(Protocol):
    @overload
    def __call__(
        self, object: NDArray[S], dtype: None = ..., *, order: Like = ..., **options: Unpack[Options]
    ) -> NDArray[S]: ...
    @overload
    def __call__(self, object: Any, dtype: DType[S], *, order: Like = ..., **options: Unpack[Options]) -> NDArray[S]: ...
    @overload
    def __call__(self, object: Any, dtype: DTypeLike = ..., *, order: Like = ..., **options: Unpack[Options]) -> Array: ...


class LikeAnother(Protocol):
    @overload
    def __call__(
        self, a: NDArray[S], /, dtype: None = ..., order: Like = ..., **options: Unpack[LikeOptions]
    ) -> NDArray[S]: ...
    @overload
    def __call__(
        self, a: ArrayLike, /, dtype: DType[S], order: Like = ..., **options: Unpack[LikeOptions]
    ) -> NDArray[S]: ...
    @overload
    def __call__(
        self, a: ArrayLike, /, dtype: DTypeLike = ..., order: Like = ..., **options: Unpack[LikeOptions]
    ) -> Array: ...


class LikeWithValue(Protocol):
    @overload
    def __call__(
        self, a: NDArray[S], fill_value: Any, dtype: None = ..., order: Like = ..., **options: Unpack[LikeOptions]
    ) -> NDArray[S]: ...
    @overload
    def __call__(
        self, a: ArrayLike, fill_value: Any, dtype: DType[S], order: Like = ..., **options: Unpack[LikeOptions]
    ) -> NDArray[S]: ...
    @overload
    def __call__(
        self, a: ArrayLike, fill_value: Any, dtype: DTypeLike = ..., order: Like = ..., **options: Unpack[LikeOptions]
    ) -> Array: ...


def of_shape(function: Callable[..., Array]) -> OfShape:
    return function


def of_value(function: Callable[..., Array]) -> OfValue:
    return function


def of_values(function: Callable[..., Array]) -> OfValues:
    return function


def like(function: Callable[..., Array]) -> LikeAnother:
    return function


def like_with_value(function: Callable[..., Array]) -> LikeWithValue:
    return function
