//! [`FirstUse`] turns off features of a GPU, one after the other, until its checks pass.
//!
//! Invariant: each feature is turned off at most once, so the loop ends.

use crate::{
    CudaExecError, Device, DeviceInfo, DeviceOptions, Launches, WideProducts,
    checks::{Finding, Needs, StepDown, check_kernels},
    driver::{EARLY_CAPABILITY, EARLY_CUDA},
    error::Result,
    modules::Target,
};

/// Records the result of a GPU's first use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FirstUse {
    /// Features that were turned off.
    pub steps: Vec<StepDown>,
    /// Findings that turned them off, in the same order, and one more if the GPU is unfit.
    pub findings: Vec<Finding>,
    /// Whether the GPU is not used: nothing was left to turn off.
    pub is_unfit: bool,
    /// Whether a kernel did not end. This process cannot use the GPU any more; the features stay off in the next one.
    pub is_hung: bool,
}

impl DeviceOptions {
    /// Returns the options without some features.
    #[must_use]
    pub fn without(mut self, steps: &[StepDown]) -> Self {
        for step in steps {
            match step {
                StepDown::InOrder => self.launches = Launches::InOrder,
                StepDown::NoWide => self.wide = WideProducts::Never,
                StepDown::Apart => self.reads_apart = true,
                StepDown::Eager => self.runs_eagerly = true,
            }
        }
        self
    }

    /// Returns whether these options use a feature on such a device.
    fn uses(&self, step: StepDown, info: &DeviceInfo) -> bool {
        match step {
            StepDown::InOrder => {
                self.launches == Launches::Early
                    && info.capability >= EARLY_CAPABILITY
                    && info.cuda_version >= EARLY_CUDA
            }
            StepDown::NoWide => {
                self.wide == WideProducts::WhereThere
                    && (Target::Hopper.refusal(info.capability, info.cuda_version)).is_none()
            }
            StepDown::Apart => !self.reads_apart,
            StepDown::Eager => !self.runs_eagerly,
        }
    }
}

impl FirstUse {
    /// Records a finding and turns off the feature that replaces its kernel. If the check names none, it turns off early launches after a
    /// kernel's check. After a model's check (`is_of_model`), whose steps ran in order and uncaptured, it turns off a feature whose kernels
    /// can be replaced.
    pub fn step_down(
        &mut self,
        finding: Finding,
        options: &DeviceOptions,
        info: &DeviceInfo,
        is_of_model: bool,
    ) -> Option<StepDown> {
        let now = options.clone().without(&self.steps);
        let in_use = |step: &StepDown| now.uses(*step, info);
        let others: &[StepDown] = if is_of_model {
            &[StepDown::NoWide, StepDown::Apart]
        } else {
            &[StepDown::InOrder]
        };
        let step = (finding.remedy.into_iter().chain(others.iter().copied())).find(in_use);
        self.findings.push(finding);
        match step {
            Some(step) => self.steps.push(step),
            None => self.is_unfit = true,
        }
        step
    }

    /// Checks the kernels that a model needs, and turns off the features that fail. `open` opens the GPU; `limit` is the longest wait of a
    /// check.
    ///
    /// # Errors
    /// Returns the errors of `open`.
    pub fn check_kernels(
        &mut self,
        options: &DeviceOptions,
        needs: &Needs,
        limit: std::time::Duration,
        mut open: impl FnMut(DeviceOptions) -> Result<Device>,
        mut on_step: impl FnMut(&Finding, Option<StepDown>),
    ) -> Result<(), CudaExecError> {
        while !self.is_unfit && !self.is_hung {
            let device = open(options.clone().without(&self.steps))?;
            device.limit_waits(Some(limit));
            let checked = check_kernels(&device, needs);
            device.limit_waits(None);
            let Err(finding) = checked else {
                return Ok(());
            };
            self.is_hung = device.is_abandoned();
            let step = self.step_down(finding, options, device.info(), false);
            let finding = self.findings.last().expect("it was added");
            on_step(finding, step);
        }
        Ok(())
    }
}
