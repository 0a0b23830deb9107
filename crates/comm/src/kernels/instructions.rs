//! Runs a [`VectorLoop`] with the widest instructions of this machine.

/// A loop whose body is inlined into a function for each instruction set.
pub(super) trait VectorLoop {
    /// Runs the loop; must be `#[inline(always)]`, or it is not compiled for each instruction set.
    fn run(self);
}

/// A set of instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstructionSet {
    /// The baseline of this architecture.
    Plain,
    /// x86-64-v3: 256 bits at once.
    #[cfg(target_arch = "x86_64")]
    V3,
    /// x86-64-v4: 512 bits at once.
    #[cfg(target_arch = "x86_64")]
    V4,
}

impl InstructionSet {
    /// Returns the best one on this machine. Cost: a few loads; the standard library caches the detection.
    pub(super) fn best() -> Self {
        Self::all().last().unwrap_or(Self::Plain)
    }

    /// Returns all that this machine supports, in ascending order.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let more = {
            let v3 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("fma");
            let v4 = v3
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            [v3.then_some(Self::V3), v4.then_some(Self::V4)]
        };
        #[cfg(not(target_arch = "x86_64"))]
        let more: [Option<Self>; 0] = [];
        std::iter::once(Self::Plain).chain(more.into_iter().flatten())
    }
}

/// Runs `kernel` compiled for `by`, which must be one of [`InstructionSet::all`].
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "functions for instructions that were detected")
)]
pub(super) fn run<K: VectorLoop>(by: InstructionSet, kernel: K) {
    match by {
        InstructionSet::Plain => kernel.run(),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::V3 => {
            // SAFETY: this value is only returned by `InstructionSet::all` if all of `v3` was detected.
            unsafe { v3(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        InstructionSet::V4 => {
            // SAFETY: this value is only returned by `InstructionSet::all` if all of `v4` was detected.
            unsafe { v4(kernel) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi2,fma")]
fn v3<K: VectorLoop>(kernel: K) {
    kernel.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
fn v4<K: VectorLoop>(kernel: K) {
    kernel.run();
}
