//! [`PageGroup`]: layers that need the keys and values of the same positions share pages.
//!
//! The batch, the memory plan and every store number pages by group. Invariant: there are at most two groups,
//! and a model whose layers all have the same window, or none, has one.

/// The layers whose keys and values a page holds. Each group has its own pool of pages and its own page
/// tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PageGroup {
    /// The layers that see all earlier tokens; or all layers, if there is one group.
    #[default]
    Main,
    /// The layers with a sliding window, in a model with both kinds.
    Window,
}

impl PageGroup {
    /// All groups, in the order of [`Self::index`].
    pub const ALL: [Self; 2] = [Self::Main, Self::Window];

    /// Returns its index in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}
