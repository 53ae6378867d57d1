// SPDX-License-Identifier: Apache-2.0
#include <tenon/tenon.h>
static_assert(__cplusplus == 201703L, "tenon::c changes the standard of its users");
const char* version() { return tenon_version(); }
