# SPDX-License-Identifier: Apache-2.0
"""Taking turns: leases, ops, native functions, and the search for views."""
