# fathom_embed(OUTPUT HEADER NAMESPACE name1 file1 [name2 file2 ...])
# writes OUTPUT, a source that defines each name as a string_view over its file's bytes. Run as a
# script (cmake -P) at build time so that a changed file is embedded again.
function(fathom_embed target header namespace)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded_${target}.cc)
  set(files)
  set(pairs ${ARGN})
  while(pairs)
    list(POP_FRONT pairs name file)
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    list(APPEND files ${file})
    list(APPEND arguments "${name}=${file}")
  endwhile()
  string(REPLACE ";" "|" arguments "${arguments}")
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DHEADER=${header} -DNAMESPACE=${namespace}
            "-DFILES=${arguments}" -P ${CMAKE_SOURCE_DIR}/cmake/embed_script.cmake
    DEPENDS ${files} ${CMAKE_SOURCE_DIR}/cmake/embed_script.cmake VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()

# fathom_embed_table(target HEADER NAMESPACE NAME files...)
# like fathom_embed, for files of one kind: defines NAME, a std::span<const File> in the order given,
# each entry {stem of the file, its bytes}. HEADER declares it, with struct File {name, text}.
function(fathom_embed_table target header namespace name)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded_${target}_${name}.cc)
  string(REPLACE ";" "|" files "${ARGN}")
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DHEADER=${header} -DNAMESPACE=${namespace}
            -DTABLE=${name} "-DFILES=${files}" -P ${CMAKE_SOURCE_DIR}/cmake/embed_script.cmake
    DEPENDS ${ARGN} ${CMAKE_SOURCE_DIR}/cmake/embed_script.cmake VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
