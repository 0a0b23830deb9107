//! The properties of this machine and build on which the bits of a model depend.

/// The version of the engine's arithmetic: a change of the bits that a model trains to increments it.
const ENGINE_VERSION: u32 = 5;

/// Returns the name and version of the engine. Equal names are a condition of equal bits.
#[must_use]
pub fn engine_name() -> String {
    format!("ronde {ENGINE_VERSION}")
}

/// Returns the processor properties that can change bits: the architecture, the instruction sets by
/// which the engine chooses kernels. Equal texts are a condition of equal bits.
///
/// ```
/// assert!(ronde_engine::cpu_features().starts_with(std::env::consts::ARCH.get(..3).unwrap()));
/// ```
#[must_use]
pub fn cpu_features() -> String {
    let mut words = vec![std::env::consts::ARCH.replace('_', "-")];
    words.extend(instruction_sets().into_iter().map(str::to_owned));
    words.join(" ")
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
    fn features_name_the_architecture() {
        let text = cpu_features();
        assert!(text.starts_with(&std::env::consts::ARCH.replace('_', "-")));
    }
}
