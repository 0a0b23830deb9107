//! The properties of this machine and build on which the bits of a model depend, and the engine's
//! device.

use burn::tensor::Device;
use ronde_core::philox::Stream;
use ronde_core::seed::{Purpose, SeedTree};

/// Returns the name and version of the tensor engine. Equal names are a condition of equal bits.
#[must_use]
pub fn engine_name() -> String {
    "burn-flex 0.22.1".to_owned()
}

/// Returns the device on which modules for training are built.
#[must_use]
pub fn training_device() -> Device {
    Device::default().autodiff()
}

/// Seeds the engine's own generator, from which Burn draws the initial weights of a user's module.
/// Call it right before building the module.
///
/// There is one generator per process: where several ranks are threads of one process, build their
/// modules one after the other, and use
/// [`ForwardContext::dropout`](crate::ForwardContext::dropout).
pub fn seed_engine(seeds: &SeedTree) {
    let stream = seeds.named(Purpose::Engine, "construction");
    training_device().seed(first_word(stream));
}

/// Returns the first 64 bits of a stream.
pub(crate) fn first_word(stream: Stream) -> u64 {
    let block = stream.block(0);
    u64::from(block[0]) << 32 | u64::from(block[1])
}

/// Returns the processor properties that can change bits: the architecture, the instruction sets by
/// which the engine chooses kernels, and the depth at which its matrix product splits long sums
/// (which follows from the size of the first-level cache). Equal texts are a condition of equal
/// bits.
///
/// ```
/// assert!(ronde_engine::cpu_features().starts_with(std::env::consts::ARCH.get(..3).unwrap()));
/// ```
#[must_use]
pub fn cpu_features() -> String {
    let mut words = vec![std::env::consts::ARCH.replace('_', "-")];
    words.extend(instruction_sets().into_iter().map(str::to_owned));
    words.push(format!("depth={}", product_depth()));
    words.join(" ")
}

/// Returns the length of the longest sum that the matrix product computes in one pass; its kernel
/// with fused multiply-add has 2 registers of 8 lanes by 6 columns.
fn product_depth() -> usize {
    gemm_common::cache::kernel_params(4096, 4096, 1 << 16, 16, 6, 4).kc
}

macro_rules! detected {
    ($detect:ident: $($feature:tt),*) => {
        [$(($feature, std::arch::$detect!($feature))),*]
            .into_iter()
            .filter_map(|(name, present)| present.then_some(name))
            .collect()
    };
}

#[cfg(target_arch = "x86_64")]
fn instruction_sets() -> Vec<&'static str> {
    detected!(is_x86_feature_detected:
        "sse4.2", "avx2", "fma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
}

#[cfg(target_arch = "aarch64")]
fn instruction_sets() -> Vec<&'static str> {
    detected!(is_aarch64_feature_detected: "neon", "fp16", "fcma")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn instruction_sets() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_engine_is_the_one_in_use() {
        let device = format!("{:?}", Device::default()).to_lowercase();
        assert!(device.contains("flex"), "{device}");
        let manifest = include_str!("../../../Cargo.toml");
        let version = engine_name().replace("burn-flex ", "");
        assert!(manifest.contains(&format!("burn = {{ version = \"={version}\"")));
    }

    #[test]
    fn features_name_the_architecture_and_the_depth() {
        let text = cpu_features();
        assert!(text.starts_with(&std::env::consts::ARCH.replace('_', "-")));
        assert!(text.contains(" depth="), "{text}");
    }
}
