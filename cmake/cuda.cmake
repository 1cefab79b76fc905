# CUDA is optional. AUTO builds it when a compiler is found; ON makes its absence an error.
set(FATHOM_HAVE_CUDA OFF)
if(NOT FATHOM_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90")  # a library that needs more names its own
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc does
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(FATHOM_HAVE_CUDA ON)
  elseif(FATHOM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FATHOM_CUDA=ON, but no CUDA compiler was found: put nvcc on the PATH or "
                        "set CUDACXX, or configure with -DFATHOM_CUDA=OFF")
  endif()
endif()
