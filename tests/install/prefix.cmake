# SPDX-License-Identifier: Apache-2.0
#
# Installs the build into a fresh prefix, moves the prefix, builds and runs the client against it, and
# sees that other versions are refused.
#   cmake -DBUILD_DIR= -DWORK_DIR= -DGENERATOR= -DSANITIZE= -P prefix.cmake

set(first ${WORK_DIR}/first)
set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${first} ${prefix} ${WORK_DIR}/client ${WORK_DIR}/refused)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${first} COMMAND_ERROR_IS_FATAL ANY
                OUTPUT_QUIET)
file(RENAME ${first} ${prefix})

if(SANITIZE)
  set(flags -DCMAKE_C_FLAGS=-fsanitize=${SANITIZE} -DCMAKE_CXX_FLAGS=-fsanitize=${SANITIZE})
endif()
set(configure ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/client -G ${GENERATOR}
              -DCMAKE_PREFIX_PATH=${prefix} ${flags})

execute_process(COMMAND ${configure} -B ${WORK_DIR}/client COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK_DIR}/client COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${WORK_DIR}/client --output-on-failure
                COMMAND_ERROR_IS_FATAL ANY)

foreach(other 0.2 1.0)
  execute_process(COMMAND ${configure} -B ${WORK_DIR}/refused -DWANTED=${other} RESULT_VARIABLE result
                  ERROR_VARIABLE errors OUTPUT_QUIET)
  if(result EQUAL 0 OR NOT errors MATCHES "not compatible with the version")
    message(FATAL_ERROR "find_package(tenon ${other}) should be refused by the version file:\n${errors}")
  endif()
endforeach()
