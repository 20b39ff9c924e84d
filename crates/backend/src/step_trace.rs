//! [`StepTrace`]: how steps on a device spent their time.
//!
//! The device measures it, and a program can show it. Invariant: the times are the device's own, not the
//! host's.

/// The time of steps, by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTrace {
    /// Steps with parts of prompts.
    pub prefill: DeviceTimes,
    /// Steps with draft tokens and without parts of prompts.
    pub verify: DeviceTimes,
    /// Steps with one token per sequence.
    pub decode: DeviceTimes,
}

/// Sums over steps, in milliseconds of device time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceTimes {
    /// Number of steps.
    pub n_steps: u64,
    /// Number of tokens in these steps, including padding.
    pub n_tokens: u64,
    /// Uploading the step's values.
    pub upload_ms: f64,
    /// The forward pass, including sampling if the device does it.
    pub compute_ms: f64,
    /// Copying the results to the host.
    pub download_ms: f64,
}
