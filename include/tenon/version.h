/* SPDX-License-Identifier: Apache-2.0
 *
 * The version numbers of Tenon. The build reads them from here.
 *
 * There are four separate versions: the package (TENON_VERSION_*), the C ABI (TENON_ABI_*), the layout of
 * shared memory (src/ipc/layout.h) and the supported DLPack version (tenon/dlpack.h).
 */
#ifndef TENON_VERSION_H_
#define TENON_VERSION_H_

#define TENON_VERSION_MAJOR 0
#define TENON_VERSION_MINOR 1
#define TENON_VERSION_PATCH 0

/* The C ABI. A new major version may break callers; a new minor version only adds. */
#define TENON_ABI_MAJOR 0
#define TENON_ABI_MINOR 7

#endif /* TENON_VERSION_H_ */
