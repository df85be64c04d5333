# Programs, libraries, tests, installation. Parts come from parts.cmake.

include(GNUInstallDirs)
get_property(SL_ALL_PARTS GLOBAL PROPERTY SL_PARTS)
get_property(SL_ENGINE_CLOSURE GLOBAL PROPERTY SL_CLOSURE_engine)
get_property(SL_ENGINE_LIBS GLOBAL PROPERTY SL_LIBS_engine)

# What src/cli may include of the parts besides sluice/sluice.h (tools/check_layers.py reads this line).
set(SL_CLI_INCLUDES base quant/quant.h checkpoint/gguf_write.h checkpoint/safetensors_write.h)

# ---- libsluice -------------------------------------------------------------------------------------------------------

# The static library is one object whose hidden symbols were made local, so that it exports what the shared one does and cannot
# collide with its user's names. Not with sanitizers (their metadata does not survive it) nor Apple's linker.
function(sl_static_library target)
  set(objects)
  foreach(p ${SL_ENGINE_CLOSURE})
    if(TARGET sl_${p})
      list(APPEND objects $<TARGET_OBJECTS:sl_${p}>)
    endif()
  endforeach()
  if(APPLE OR SLUICE_SANITIZE OR SLUICE_FUZZ OR NOT CMAKE_OBJCOPY)
    add_library(${target} STATIC ${objects})
  else()
    set(whole ${CMAKE_BINARY_DIR}/sluice_whole.o)
    add_custom_command(OUTPUT ${whole}
      COMMAND ${CMAKE_LINKER} -r -o ${whole} ${objects}
      COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${whole}
      DEPENDS ${objects} COMMAND_EXPAND_LISTS VERBATIM)
    set_source_files_properties(${whole} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    add_library(${target} STATIC ${whole})
  endif()
  set_target_properties(${target} PROPERTIES OUTPUT_NAME sluice LINKER_LANGUAGE C)
  target_link_libraries(${target} PUBLIC ${SL_ENGINE_LIBS} Threads::Threads m ${CMAKE_DL_LIBS})
endfunction()

file(GLOB sl_engine_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/engine/*.c)
if(sl_engine_sources)
  add_library(sluice_shared SHARED)
  sl_link_part(sluice_shared engine)
  set_target_properties(sluice_shared PROPERTIES OUTPUT_NAME sluice VERSION ${PROJECT_VERSION} SOVERSION 0)
  sl_static_library(sluice_static)
  # From the .pc file to the prefix, so that an installed tree can be moved.
  file(RELATIVE_PATH SL_PC_TO_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/sluice.pc.in ${CMAKE_BINARY_DIR}/sluice.pc @ONLY)
endif()

# ---- the program -----------------------------------------------------------------------------------------------------

file(GLOB sl_cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/*.c)
if(TARGET sluice_shared AND sl_cli_sources AND EDIT_FOUND)
  add_executable(sluice_cli ${sl_cli_sources})
  set_target_properties(sluice_cli PROPERTIES OUTPUT_NAME sluice)
  sl_link_part(sluice_cli engine)
  target_link_libraries(sluice_cli PRIVATE ${EDIT_LIBRARIES} ${JANSSON_LIBRARIES})
  if(URING_FOUND)
    target_compile_definitions(sluice_cli PRIVATE SL_HAVE_URING=1)
  endif()
  # Completions come from the program's own tables of options.
  if(NOT CMAKE_CROSSCOMPILING AND NOT SLUICE_SANITIZE AND NOT SLUICE_FUZZ)
    set(sl_completions)
    foreach(shell bash zsh fish)
      set(out ${CMAKE_BINARY_DIR}/completions/sluice.${shell})
      add_custom_command(OUTPUT ${out}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/completions
        COMMAND $<TARGET_FILE:sluice_cli> completions ${shell} > ${out}
        DEPENDS sluice_cli)
      list(APPEND sl_completions ${out})
    endforeach()
    add_custom_target(completions ALL DEPENDS ${sl_completions})
  endif()
endif()

# Examples use the library as anybody would: the public headers and libsluice.
file(GLOB sl_examples CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.c)
if(TARGET sluice_static)
  foreach(e ${sl_examples})
    get_filename_component(n ${e} NAME_WE)
    add_executable(example_${n} ${e})
    target_link_libraries(example_${n} PRIVATE sluice_static)
  endforeach()
endif()

# bench/<name>.c, or bench/<name>/main.c with what lies beside it: programs that measure; not built by default.
file(GLOB sl_benches CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*.c ${PROJECT_SOURCE_DIR}/bench/*/main.c)
add_custom_target(bench)
foreach(b ${sl_benches})
  get_filename_component(n ${b} NAME_WE)
  if(n STREQUAL main)
    get_filename_component(d ${b} DIRECTORY)
    get_filename_component(n ${d} NAME)
    file(GLOB b CONFIGURE_DEPENDS ${d}/*.c)
  endif()
  add_executable(bench_${n} EXCLUDE_FROM_ALL ${b})
  sl_link_part(bench_${n} engine)
  add_dependencies(bench bench_${n})
endforeach()

# ---- tests -----------------------------------------------------------------------------------------------------------

# tests/standin: the Objective-C runtime and Metal where there are none, a library that the metal device is pointed at.
file(GLOB sl_standin CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/standin/*.c)
if(NOT APPLE AND NOT SLUICE_FUZZ AND SL_CPU MATCHES "x86_64|amd64|aarch64|arm64")
  add_library(metal_standin SHARED EXCLUDE_FROM_ALL ${sl_standin})
  sl_link_part(metal_standin gpu)
  # Its soft device is its own, whatever the program has; the threads of its queues outlast a dlclose.
  target_link_options(metal_standin PRIVATE -Wl,-Bsymbolic -Wl,-z,nodelete)
  # tests/standin/cuda: NVIDIA's driver and NVRTC in the same way.
  file(GLOB sl_cuda_standin CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/standin/cuda/*.c)
  add_library(cuda_standin SHARED EXCLUDE_FROM_ALL ${sl_cuda_standin})
  sl_link_part(cuda_standin gpu)
  target_link_options(cuda_standin PRIVATE -Wl,-Bsymbolic -Wl,-z,nodelete)
endif()

# tests/unit/<part>/test_*.c: cmocka programs that link the part and what is below it; helpers: tests/unit/<part>/support_*.c
enable_testing()
find_library(CMOCKA_LIBRARY cmocka)
if(CMOCKA_LIBRARY AND NOT SLUICE_FUZZ)
  foreach(p ${SL_ALL_PARTS})
    file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/unit/${p}/test_*.c)
    file(GLOB support CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/unit/${p}/support_*.c)
    foreach(t ${tests})
      get_filename_component(n ${t} NAME_WE)
      add_executable(${n} ${t} ${support} ${PROJECT_SOURCE_DIR}/tests/unit/own_cache.c)
      sl_link_part(${n} ${p})
      target_link_libraries(${n} PRIVATE ${CMOCKA_LIBRARY})
      target_compile_definitions(${n} PRIVATE SL_SOURCE_DIR="${PROJECT_SOURCE_DIR}" SL_SHARED_DATA="${PROJECT_SOURCE_DIR}/../shared/data"
                                              SL_TEST_CACHE="${PROJECT_BINARY_DIR}/cache")
      if(TARGET metal_standin AND p MATCHES "^(gpu|ops|engine)$")
        target_compile_definitions(${n} PRIVATE SL_METAL_STANDIN="$<TARGET_FILE:metal_standin>"
                                                SL_CUDA_STANDIN="$<TARGET_FILE:cuda_standin>")
        add_dependencies(${n} metal_standin cuda_standin)
      endif()
      add_test(NAME ${n} COMMAND ${n})
      set_tests_properties(${n} PROPERTIES SKIP_RETURN_CODE 77 LABELS ${p} TIMEOUT 600)
    endforeach()
  endforeach()
endif()

# tests/fuzz/fuzz_<part>_*.c: libFuzzer targets, with corpora in tests/fuzz/corpus/<name>/
if(SLUICE_FUZZ)
  file(GLOB fuzzers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
  add_custom_target(fuzzers)
  foreach(f ${fuzzers})
    get_filename_component(n ${f} NAME_WE)
    string(REGEX REPLACE "^fuzz_([a-z]+)_.*$" "\\1" p ${n})
    add_executable(${n} ${f})
    sl_link_part(${n} ${p})
    target_compile_options(${n} PRIVATE -fsanitize=fuzzer)
    target_link_options(${n} PRIVATE -fsanitize=fuzzer)
    add_dependencies(fuzzers ${n})
  endforeach()
  foreach(p ${SL_ALL_PARTS})
    if(TARGET sl_${p})
      target_compile_options(sl_${p} PRIVATE -fsanitize=fuzzer-no-link)
    endif()
  endforeach()
endif()

# ---- installation ----------------------------------------------------------------------------------------------------

if(TARGET sluice_cli)
  install(TARGETS sluice_shared sluice_static sluice_cli
          RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY include/sluice DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES ${CMAKE_BINARY_DIR}/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  install(FILES docs/sluice.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  if(TARGET completions)
    install(FILES ${CMAKE_BINARY_DIR}/completions/sluice.bash
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME sluice)
    install(FILES ${CMAKE_BINARY_DIR}/completions/sluice.zsh
            DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _sluice)
    install(FILES ${CMAKE_BINARY_DIR}/completions/sluice.fish
            DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  endif()
endif()
