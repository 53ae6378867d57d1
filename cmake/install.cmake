# SPDX-License-Identifier: Apache-2.0
#
# What is installed: the library, the public headers, the files for find_package(tenon) and tenon.pc. The same
# rules fill a prefix and the wheel, where the package directory is the prefix. While the major version is 0 a
# new minor version may break callers, so find_package accepts the same minor version only.

include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tenon)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tenonConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/tenonConfig.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tenonConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)

# tenon.pc finds the prefix from where it lies, so that the prefix can be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
  set(pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
  set(pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
  file(RELATIVE_PATH up /${pkgconfig_dir} /)
  set(pc_prefix "\${pcfiledir}/${up}")
  set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
if(TENON_PYTHON) # no loader looks into a Python package
  set(pc_libs "-L\${libdir} -Wl,-rpath,\${libdir} -ltenon")
else()
  set(pc_libs "-L\${libdir} -ltenon")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/tenon.pc.in ${PROJECT_BINARY_DIR}/tenon.pc @ONLY)

set(tenon_targets tenon tenon_c EXPORT tenonTargets)
if(TENON_PYTHON) # a wheel cannot hold the symbolic link libtenon.so: linkers read this script instead
  install(TARGETS ${tenon_targets} LIBRARY NAMELINK_SKIP FILE_SET HEADERS)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/wheel/libtenon.so CONTENT "INPUT(libtenon.so.${abi_major})\n")
  install(FILES ${PROJECT_BINARY_DIR}/wheel/libtenon.so DESTINATION ${CMAKE_INSTALL_LIBDIR})
else()
  install(TARGETS ${tenon_targets} FILE_SET HEADERS)
endif()
install(EXPORT tenonTargets NAMESPACE tenon:: DESTINATION ${config_dir})
install(FILES ${PROJECT_BINARY_DIR}/tenonConfig.cmake ${PROJECT_BINARY_DIR}/tenonConfigVersion.cmake
        DESTINATION ${config_dir})
install(FILES ${PROJECT_BINARY_DIR}/tenon.pc DESTINATION ${pkgconfig_dir})
