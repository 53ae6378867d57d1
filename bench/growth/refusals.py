# SPDX-License-Identifier: Apache-2.0
"""Pushes that a view refuses, beside n objects that the search for the view and the garbage collector may
visit. Contenders as in calls.py."""

import functools
import gc

import tenon as tn


def refuse(array):
    try:
        tn.push(tn.fill, tn.overwrite(array), 1)
    except tn.LeaseConflict:
        return
    raise AssertionError("the view did not conflict with the op")


def of_variable(n):
    objects = [[tn.zeros(8)] for _ in range(n)]
    a = tn.zeros(8)

    def body():
        view = a.numpy()
        refuse(a)
        del view

    yield body, 5
    del objects


def of_item(i):
    """The view is in the list with an index."""

    def contender(n):
        objects = [[tn.zeros(8)] for _ in range(n)]
        a = tn.zeros(8)
        objects[i].append(a.numpy())
        yield functools.partial(refuse, a), 5
        del objects

    return contender


def referrers_by_gc(n):
    """The search of the standard library, which knows no arrays: it finds what refers to the view itself."""
    objects = [[tn.zeros(8)] for _ in range(n)]
    view = tn.zeros(8).numpy()
    objects[-1].append(view)
    yield (lambda: gc.get_referrers(view)), 5
    del objects
