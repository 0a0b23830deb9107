//! [`ComputeEngine`]: the library that computes matrix products and convolutions.

use ronde_kernels::ShortProducts;
use serde::{Deserialize, Serialize};

use super::HostDevice;
use crate::{EngineError, Precision};

/// The library that computes matrix products and convolutions on the processor. Everything else, attention included, is
/// computed by `ronde-kernels`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ComputeEngine {
    /// `ronde-kernels`. The number of threads does not change the bits.
    #[default]
    Ronde,
    /// oneDNN, loaded at run time. Its version, the processor and the number of threads change the bits.
    OneDnn,
}

impl ComputeEngine {
    /// Returns a device that computes on the calling thread and `threads - 1` others, which inherit its cores. With `f16_products`,
    /// `ronde-kernels` sums up to 16 products of f16 values in f16, if the processor can.
    ///
    /// # Errors
    /// When the system starts no more threads, or the library is missing, too old, or not part of this build.
    pub fn device(self, threads: usize, f16_products: bool) -> Result<HostDevice, EngineError> {
        let device = HostDevice::with_threads(threads)?;
        Ok(match self {
            Self::Ronde => device.with_f16_products(f16_products),
            Self::OneDnn => device.with_products(one_dnn(threads)?),
        })
    }

    /// Returns what computes the products of values of a precision, if this is a condition of equal bits: the instructions of a
    /// short format, or the library's version and settings. `None` for f32 by `ronde-kernels`. The other arguments are those of
    /// [`ComputeEngine::device`].
    ///
    /// # Errors
    /// When the library is missing, too old, or not part of this build, or this processor cannot sum in f16.
    pub fn products(
        self,
        threads: usize,
        precision: Precision,
        f16_products: bool,
    ) -> Result<Option<String>, EngineError> {
        match self {
            Self::Ronde => {
                let short = precision.short().and_then(ShortProducts::of);
                let products =
                    short.filter(|products| *products != ShortProducts::F16Sums || f16_products);
                if f16_products && products != Some(ShortProducts::F16Sums) {
                    return Err(EngineError::NoF16Products);
                }
                Ok(products.map(|products| products.name().to_owned()))
            }
            Self::OneDnn => Ok(Some(one_dnn(threads)?.name())),
        }
    }
}

fn one_dnn(threads: usize) -> Result<Box<dyn super::host::ProductKernels>, EngineError> {
    #[cfg(feature = "onednn")]
    let found = super::onednn::OneDnn::load(threads).map(|found| Box::new(found) as _);
    #[cfg(not(feature = "onednn"))]
    let found = {
        let _ = threads;
        Err("it is not part of this build; build with `--features onednn`".to_owned())
    };
    found.map_err(|cause| EngineError::OneDnn { cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_engine_has_no_library_and_any_number_of_threads() {
        let engine = ComputeEngine::default();
        assert_eq!(engine.products(3, Precision::F32, false), Ok(None));
        assert_eq!(engine.products(3, Precision::F16, false), Ok(None));
        let bf16 = engine.products(3, Precision::Bf16, false).unwrap();
        let fastest = ShortProducts::of(ronde_kernels::ShortFormat::Bf16);
        assert_eq!(bf16.as_deref(), fastest.map(ShortProducts::name));
        let f16 = engine.products(1, Precision::F16, true);
        match ShortProducts::of(ronde_kernels::ShortFormat::F16) {
            Some(sums) => assert_eq!(f16.unwrap().as_deref(), Some(sums.name())),
            None => assert_eq!(f16, Err(EngineError::NoF16Products)),
        }
        let device = engine.device(2, false).unwrap();
        assert_eq!(super::super::Device::name(&device), crate::engine_name());
    }

    #[test]
    #[cfg(not(feature = "onednn"))]
    fn a_build_without_a_library_says_how_to_build_with_it() {
        let error = ComputeEngine::OneDnn
            .products(1, Precision::F32, false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("--features onednn"), "{error}");
    }
}
