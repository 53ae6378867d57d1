// SPDX-License-Identifier: Apache-2.0
#include <tenon/tenon.h>

extern "C" __attribute__((visibility("default"))) const char* client_version() { return tenon_version(); }
