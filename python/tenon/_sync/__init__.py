# SPDX-License-Identifier: Apache-2.0
"""The order of accesses: leases, ops, native functions, and the search for views."""
