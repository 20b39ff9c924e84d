//! [`Shops`]: makes rows, and checks or launches one by its name, for the search for a wrong kernel.
//!
//! Measuring continues after a failed row; the search does not. Invariant: a row gives the same launches, with the same bytes, each time.

use anyhow::Context;
use tokenmill_cuda_exec::{Device, WideProducts};

use super::{
    Data, Workshop,
    rows::{ROWS, RowSpec},
};

/// Divides the rows of matrices if a row is to be small.
pub(crate) const SMALL_SLICE: usize = 64;

/// Makes rows: on the GPU as it is, and on the same GPU without matrix operations of warpgroups.
pub(crate) struct Shops {
    plain: Workshop,
    without_wide: Workshop,
}

impl Shops {
    /// Opens the GPU both ways. Rows of matrices are divided by `slice`, and a launch's inputs have at most `max_copies`.
    ///
    /// # Errors
    /// A device that cannot be opened.
    pub(crate) fn new(
        open: impl Fn(WideProducts) -> anyhow::Result<Device>,
        slice: usize,
        max_copies: usize,
        data: Data,
    ) -> anyhow::Result<Self> {
        let shop = |wide| Workshop::new(&open(wide)?, slice, max_copies, data);
        Ok(Self {
            plain: shop(WideProducts::WhereThere)?,
            without_wide: shop(WideProducts::Never)?,
        })
    }

    pub(super) fn of(&mut self, row: &RowSpec) -> &mut Workshop {
        if row.is_without_wide {
            &mut self.without_wide
        } else {
            &mut self.plain
        }
    }

    /// Lists the names of the rows that an 8B in Q4_K_M launches and that contain `filter`.
    pub(crate) fn suspects(filter: &str) -> impl Iterator<Item = &'static str> {
        let rows = ROWS.iter().filter(|row| row.is_of_q4_k_m());
        rows.map(|row| row.name).filter(move |name| name.contains(filter))
    }

    /// Returns the device that a row is launched on.
    ///
    /// # Errors
    /// A name that no row has.
    pub(crate) fn device(&mut self, name: &str) -> anyhow::Result<Device> {
        Ok(self.of(RowSpec::find(name)?).device.clone())
    }

    /// Launches a row once and compares its results with those of a plain loop.
    ///
    /// # Errors
    /// A row that cannot be made, or whose results are wrong.
    pub(crate) fn check(&mut self, name: &str) -> anyhow::Result<()> {
        let spec = RowSpec::find(name)?;
        let mut work = self.of(spec).make(spec.what)?;
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
        let spec = RowSpec::find(name)?;
        let mut work = self.of(spec).make(spec.what)?;
        Ok((work.launch)(0)?)
    }
}
