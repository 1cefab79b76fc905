# One static library a layer, one test program a layer, so that a layer builds and tests alone.
#   fathom_layer(NAME [DEPS targets...] [EXCLUDE regexes...])
# takes src/NAME/**/*.cc; *_test.cc beside the code becomes the program fathom_NAME_test.
add_library(fathom_flags INTERFACE)
target_include_directories(fathom_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(fathom_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers>
  $<$<AND:$<BOOL:${FATHOM_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)

function(fathom_layer name)
  cmake_parse_arguments(ARG "" "" "DEPS;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
  foreach(pattern IN LISTS ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX ${pattern})
  endforeach()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(sources)
    add_library(fathom_${name} STATIC ${sources})
    target_link_libraries(fathom_${name} PUBLIC fathom_flags ${ARG_DEPS})
  else()
    add_library(fathom_${name} INTERFACE)
    target_link_libraries(fathom_${name} INTERFACE fathom_flags ${ARG_DEPS})
  endif()
  if(tests)
    fathom_test(fathom_${name}_test SOURCES ${tests} DEPS fathom_${name} LABEL ${name})
  endif()
endfunction()

# fathom_test(TARGET SOURCES files... DEPS targets... LABEL label)
function(fathom_test target)
  cmake_parse_arguments(ARG "" "LABEL" "SOURCES;DEPS" ${ARGN})
  add_executable(${target} ${ARG_SOURCES})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})  # tests/tolerances.h
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE FATHOM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(FATHOM_FUZZ)  # other flags: that build is for the fuzz targets, tests only by name
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  include(GoogleTest)
  gtest_discover_tests(${target} DISCOVERY_TIMEOUT 120
    PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT 600)
endfunction()
