//! [`PageGroup`]: layers that keep their keys and values for equally long share pages.
//!
//! Separate because the batch, the plan of the memory and every store number pages by group. Invariant: there are two groups
//! at most, and a model whose layers all see equally far has one.

/// Which layers' keys and values a page holds. Each group has a pool of pages and page tables of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PageGroup {
    /// The layers that see all tokens before; or all layers, where there is one group.
    #[default]
    Main,
    /// The layers with a sliding window, of a model that has both kinds.
    Window,
}

impl PageGroup {
    /// All groups, in the order of [`Self::index`].
    pub const ALL: [Self; 2] = [Self::Main, Self::Window];

    /// Its place in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}
