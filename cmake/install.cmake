# SPDX-License-Identifier: Apache-2.0
#
# What is installed: the library, the public headers and the files for find_package(tenon). The same rules
# fill a prefix and the wheel, where the package directory is the prefix. While the major version is 0 a
# new minor version may break callers, so find_package accepts the same minor version only.

include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tenon)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tenonConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/tenonConfig.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tenonConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)

install(TARGETS tenon EXPORT tenonTargets FILE_SET HEADERS)
install(EXPORT tenonTargets NAMESPACE tenon:: DESTINATION ${config_dir})
install(FILES ${PROJECT_BINARY_DIR}/tenonConfig.cmake ${PROJECT_BINARY_DIR}/tenonConfigVersion.cmake
        DESTINATION ${config_dir})
