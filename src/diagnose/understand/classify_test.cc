#include "diagnose/understand/classify.h"

#include <gtest/gtest.h>

namespace fathom::diagnose {
namespace {

TEST(ClassifyKernelName, Attention) {
  for (const char* name :
       {"void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_64x128x128_4x1x1",
        "void fathom::kernels::cuda::sm90::PrefillKernel<PrefillConfig<128, 128, "
        "2>>(PrefillParams)",
        "DecodeWideKernel(DecodeParams, DecodeMaps)",
        "void DecodeWarpsKernel<WarpsConfig<1, 128, 8>>(DecodeParams, WarpsMaps)",
        "void DecodeLatentKernel<LatentConfig<2>>(DecodeParams, LatentMaps)",
        "DecodeMergeKernel(DecodeParams)", "MergeStatesKernel(MergeStatesParams)"}) {
    EXPECT_EQ(ClassifyKernelName(name), KernelClass::kAttention) << name;
  }
}

TEST(ClassifyKernelName, CacheWritesAreNotAttention) {
  for (const char* name : {"void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>",
                           "void CacheWriteKernel<CacheWriteConfig<2>>(CacheWriteParams)"}) {
    EXPECT_EQ(ClassifyKernelName(name), KernelClass::kCacheWrite) << name;
  }
}

}  // namespace
}  // namespace fathom::diagnose
