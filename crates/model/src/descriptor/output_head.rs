//! [`OutputHead`]: the weights that turn the last hidden row into logits.

/// The source of the output head's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputHead {
    /// Its own tensor.
    Own,
    /// The token embedding.
    Tied,
    /// Its own tensor if there is one, else the token embedding.
    #[default]
    OwnIfPresent,
    /// Some rows of its own tensor; every rank of a group has different rows.
    Part(HeadPart),
    /// None: the network predicts no tokens.
    None,
}

/// The part of the output head that a rank of a group holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadPart {
    /// Number of rows per rank, one for each token whose logits it computes.
    pub n_each: usize,
    /// Number of ranks.
    pub n_ranks: usize,
}
