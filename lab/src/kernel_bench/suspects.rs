//! [`Suspects`]: the rows of `kernel-bench` for the search for a wrong kernel: the failing rows, and their launches once more.
//!
//! Measuring continues after a failed row; this does not. Invariant: a row gives the same launches, with the same bytes, each time.

use anyhow::Context;
use tokenmill_cuda_exec::{Device, WideProducts};

use super::{
    Shops,
    rows::{ROWS, RowSpec},
    work::Data,
};

/// Divides the rows of matrices if a row is to be small.
pub(crate) const SMALL_SLICE: usize = 64;

/// Rows on a device.
pub(crate) struct Suspects(Shops);

impl Suspects {
    /// Makes rows whose matrices are divided by `slice`.
    ///
    /// # Errors
    /// A device that cannot be opened.
    pub(crate) fn new(
        open: impl Fn(WideProducts) -> anyhow::Result<Device>,
        slice: usize,
    ) -> anyhow::Result<Self> {
        Ok(Self(Shops::new(open, slice, 1, Data::Made)?))
    }

    /// Lists the names of the rows that an 8B in Q4_K_M launches and that contain `filter`.
    pub(crate) fn names(filter: &str) -> impl Iterator<Item = &'static str> {
        let rows = ROWS.iter().filter(|row| row.is_of_q4_k_m());
        rows.map(|row| row.name).filter(move |name| name.contains(filter))
    }

    /// Returns the device that a row is launched on.
    ///
    /// # Errors
    /// A name that no row has.
    pub(crate) fn device(&mut self, name: &str) -> anyhow::Result<Device> {
        Ok(self.0.of(spec(name)?).device.clone())
    }

    /// Launches a row once and compares its results with those of a plain loop.
    ///
    /// # Errors
    /// A row that cannot be made, or whose results are wrong.
    pub(crate) fn check(&mut self, name: &str) -> anyhow::Result<()> {
        let spec = spec(name)?;
        let mut work = self.0.of(spec).make(spec)?;
        (work.launch)(0)?;
        let check = work.check.take().context("a row is checked once")?;
        check()?;
        Ok(())
    }

    /// Makes a row and launches it once, without a comparison.
    ///
    /// # Errors
    /// A row that cannot be made or launched.
    pub(crate) fn launch(&mut self, name: &str) -> anyhow::Result<()> {
        let spec = spec(name)?;
        let mut work = self.0.of(spec).make(spec)?;
        Ok((work.launch)(0)?)
    }
}

fn spec(name: &str) -> anyhow::Result<&'static RowSpec> {
    (ROWS.iter())
        .find(|row| row.name == name)
        .with_context(|| format!("no row is called `{name}`"))
}
