//! [`StepTrace`]: what the time of steps on a device went to.
//!
//! Separate from the device that measures it, so that a program can show it. Invariant: the times are the device's own, not the
//! host's.

/// Where the time of steps went, by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTrace {
    /// Steps with parts of prompts.
    pub prefill: DeviceTimes,
    /// Steps with guesses behind the newest tokens, and nothing of a prompt.
    pub verify: DeviceTimes,
    /// Steps with one token of each sequence.
    pub decode: DeviceTimes,
}

/// Sums over steps, in milliseconds of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceTimes {
    /// Steps.
    pub n_steps: u64,
    /// Tokens of these steps, padding included.
    pub n_tokens: u64,
    /// Getting the step's values.
    pub upload_ms: f64,
    /// The forward pass, with sampling where that is the device's.
    pub compute_ms: f64,
    /// Copying the results to the host.
    pub download_ms: f64,
}
