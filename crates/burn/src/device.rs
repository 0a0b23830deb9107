//! Burn's device, its random generator, and what its bits depend on.

use burn::tensor::Device;
use ronde_core::seed::{Purpose, SeedTree};
use ronde_engine::first_word;

/// Returns the name and version of the tensor engine, and the depth at which its matrix product
/// splits long sums (which follows from the size of the first-level cache). Equal names are a
/// condition of equal bits.
#[must_use]
pub fn engine_name() -> String {
    // Its kernel with fused multiply-add has 2 registers of 8 lanes by 6 columns.
    let depth = gemm_common::cache::kernel_params(4096, 4096, 1 << 16, 16, 6, 4).kc;
    format!("burn-flex 0.22.1 depth={depth}")
}

/// Returns the device on which modules for training are built.
#[must_use]
pub fn training_device() -> Device {
    Device::default().autodiff()
}

/// Seeds Burn's own generator, from which it draws the initial weights of a module. Call it right
/// before building the module, for example with the seed of the run.
///
/// There is one generator per process: where several ranks are threads of one process, build their
/// modules one after the other, and use [`dropout`](crate::dropout).
pub fn seed_engine(seeds: &SeedTree) {
    let stream = seeds.named(Purpose::Engine, "construction");
    training_device().seed(first_word(stream));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_engine_is_the_one_in_use() {
        let _alone = crate::testing::alone();
        let device = format!("{:?}", Device::default()).to_lowercase();
        assert!(device.contains("flex"), "{device}");
        let manifest = include_str!("../../../Cargo.toml");
        let name = engine_name().replace("burn-flex ", "");
        let version = name.split(' ').next().unwrap();
        assert!(manifest.contains(&format!("burn = {{ version = \"={version}\"")));
    }
}
