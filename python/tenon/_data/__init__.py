# SPDX-License-Identifier: Apache-2.0
"""Feeds: generators, schemas, batches, plug-ins and the consumers of batches."""
