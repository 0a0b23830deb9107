//! [`ComputeEngine`]: the library that computes matrix products and convolutions.

use std::sync::Arc;

use ronde_kernels::Products;
use serde::{Deserialize, Serialize};

use super::{Device, HostDevice, ProductMethod};
use crate::error::EngineError;
use crate::precision::Precision;

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
    /// Returns a device that computes on the calling thread and `threads - 1` others, which inherit its cores. The method is that of
    /// `ronde-kernels`.
    ///
    /// # Errors
    /// When the system starts no more threads, or the library is missing, too old, or not part of this build.
    pub fn device(
        self,
        threads: usize,
        method: ProductMethod,
    ) -> Result<Arc<dyn Device>, EngineError> {
        let device = HostDevice::with_threads(threads)?;
        Ok(match self {
            Self::Ronde => Arc::new(device.with_method(method)),
            Self::OneDnn => one_dnn(device, threads)?.0,
        })
    }

    /// Returns what computes the products of values of a precision, if this is a condition of equal bits: the instructions of a
    /// short format or of split values, or the library's version and settings. `None` for plain f32 by `ronde-kernels`. The other arguments are those of
    /// [`ComputeEngine::device`].
    ///
    /// # Errors
    /// When the library is missing, too old, or not part of this build, or this processor cannot multiply by the method.
    pub fn products(
        self,
        threads: usize,
        precision: Precision,
        method: ProductMethod,
    ) -> Result<Option<String>, EngineError> {
        match self {
            Self::Ronde => {
                let products = method.of(precision.short());
                let needs = match method {
                    ProductMethod::Plain => None,
                    ProductMethod::Split => Some((Products::SplitTiles, "split", "AMX")),
                    ProductMethod::F16 => Some((Products::F16Sums, "f16", "AVX512-FP16")),
                };
                if let Some((needed, method, instructions)) = needs
                    && products != needed
                {
                    return Err(EngineError::NoProducts {
                        method,
                        instructions,
                    });
                }
                Ok(products.name().map(str::to_owned))
            }
            Self::OneDnn => Ok(Some(one_dnn(HostDevice::new(), threads)?.1)),
        }
    }
}

/// Returns the processor with the products of oneDNN, and the version and settings of the library.
#[cfg(feature = "onednn")]
fn one_dnn(host: HostDevice, threads: usize) -> Result<(Arc<dyn Device>, String), EngineError> {
    let device = super::onednn::OneDnn::load(host, threads);
    let device = device.map_err(|cause| EngineError::OneDnn { cause })?;
    let version = device.version();
    Ok((Arc::new(device), version))
}

#[cfg(not(feature = "onednn"))]
fn one_dnn(_host: HostDevice, _threads: usize) -> Result<(Arc<dyn Device>, String), EngineError> {
    Err(EngineError::OneDnn {
        cause: "it is not part of this build; build with `--features onednn`".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_engine_has_no_library_and_any_number_of_threads() {
        let engine = ComputeEngine::default();
        let products = |precision, method| engine.products(3, precision, method);
        let named = |products: Products| products.name().map(str::to_owned);
        for precision in [Precision::F32, Precision::F16] {
            assert_eq!(products(precision, ProductMethod::Plain), Ok(None));
        }
        let bf16 = Products::of(Some(ronde_kernels::ShortFormat::Bf16));
        let found = products(Precision::Bf16, ProductMethod::Plain);
        assert_eq!(found, Ok(named(bf16)));
        let others = [
            (Precision::F32, ProductMethod::Split, "AMX"),
            (Precision::F16, ProductMethod::F16, "AVX512-FP16"),
        ];
        for (precision, method, instructions) in others {
            let found = products(precision, method);
            match Products::of(precision.short()) {
                Products::F32 => {
                    let error = found.unwrap_err().to_string();
                    assert!(error.contains(instructions), "{error}");
                }
                products => assert_eq!(found, Ok(named(products))),
            }
        }
        let device = engine.device(2, ProductMethod::default()).unwrap();
        assert_eq!(device.name(), crate::engine_name());
    }

    #[test]
    #[cfg(not(feature = "onednn"))]
    fn a_build_without_a_library_says_how_to_build_with_it() {
        let error = ComputeEngine::OneDnn
            .products(1, Precision::F32, ProductMethod::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("--features onednn"), "{error}");
    }
}
