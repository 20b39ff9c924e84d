//! [`HeadShare`], [`InnerShare`]: the heads and the inner rows of a rank.
//!
//! This is arithmetic only. Invariant: the shares of all ranks cover everything, and each rank has something.

use std::ops::Range;

use crate::{AttentionDescriptor, LoadError};

use super::Rank;

/// The heads of a rank. If there are more ranks than KV heads, several ranks have the same one.
pub(super) struct HeadShare {
    rank: Rank,
    n_heads: usize,
    n_kv_heads: usize,
}

impl HeadShare {
    pub(super) fn of(
        attention: &AttentionDescriptor,
        layer_idx: usize,
        rank: Rank,
    ) -> Result<Self, LoadError> {
        let AttentionDescriptor {
            n_heads, n_kv_heads, ..
        } = *attention;
        let n_ranks = rank.n_ranks;
        let divides = |n: usize| {
            n_heads.is_multiple_of(n) && (n_kv_heads.is_multiple_of(n) || n.is_multiple_of(n_kv_heads))
        };
        if !divides(n_ranks) {
            return Err(LoadError::NotDivisible {
                what: format!("{n_heads} heads and {n_kv_heads} KV heads of layer {layer_idx}"),
                n_ranks,
                fitting: (1..=n_heads).filter(|&n| divides(n)).collect(),
            });
        }
        Ok(Self {
            rank,
            n_heads,
            n_kv_heads,
        })
    }

    /// Returns the numbers of heads and KV heads of the rank.
    pub(super) fn counts(&self) -> (usize, usize) {
        let n_ranks = self.rank.n_ranks;
        (self.n_heads / n_ranks, (self.n_kv_heads / n_ranks).max(1))
    }

    /// Returns the rank's part of rows that are divided evenly among heads.
    pub(super) fn queries(&self, n_rows: usize) -> Range<usize> {
        let len = n_rows / self.rank.n_ranks;
        self.rank.idx * len..(self.rank.idx + 1) * len
    }

    /// Returns the rank's part of rows that are divided evenly among KV heads.
    pub(super) fn keys(&self, n_rows: usize) -> Range<usize> {
        let (_, n_own) = self.counts();
        let first = self.rank.idx * self.n_kv_heads / self.rank.n_ranks;
        let of_head = n_rows / self.n_kv_heads;
        first * of_head..(first + n_own) * of_head
    }
}

/// The inner rows of a rank.
pub(super) struct InnerShare(Range<usize>);

/// Preferred granularity of inner rows: the number that products process at a time.
const GROUP: usize = 32;

impl InnerShare {
    /// Divides `n_ff` rows into pieces of whole blocks, so that the following matrix, `down`, can be divided
    /// along its rows.
    pub(super) fn of(n_ff: usize, block_len: usize, rank: Rank, down: &str) -> Result<Self, LoadError> {
        let Rank { idx, n_ranks } = rank;
        let mut piece = block_len.max(GROUP);
        while !n_ff.is_multiple_of(piece) || n_ff / piece < n_ranks {
            piece /= 2;
            if piece == 0 || !piece.is_multiple_of(block_len) {
                let n_blocks = n_ff / block_len;
                return Err(LoadError::NotDivisible {
                    what: if n_blocks == 1 {
                        format!("{n_ff} columns of `{down}`, which are a single block,")
                    } else {
                        format!("{n_ff} columns of `{down}`, which are {n_blocks} blocks of {block_len},")
                    },
                    n_ranks,
                    fitting: (1..=n_blocks).collect(),
                });
            }
        }
        let n_pieces = n_ff / piece;
        let start = |idx: usize| idx * n_pieces / n_ranks * piece;
        Ok(Self(start(idx)..start(idx + 1)))
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.0.clone()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_rows_are_divided_by_blocks_as_evenly_as_these_allow() {
        let check = |n_ff, block_len, n_ranks, expected: &[usize]| {
            let mut next = 0;
            let lens: Vec<usize> = (0..n_ranks)
                .map(|idx| {
                    let share = InnerShare::of(n_ff, block_len, Rank { idx, n_ranks }, "down").unwrap();
                    assert_eq!(share.range().start, next);
                    next = share.range().end;
                    share.len()
                })
                .collect();
            assert_eq!(next, n_ff);
            assert_eq!(lens, expected);
        };
        check(14336, 256, 8, &[1792; 8]);
        check(768, 256, 2, &[256, 512]);
        check(96, 32, 2, &[32, 64]);
        check(96, 1, 4, &[16, 32, 16, 32]);
        check(96, 1, 8, &[8, 16, 8, 16, 8, 16, 8, 16]);
    }

    #[test]
    fn fewer_blocks_than_ranks_are_refused() {
        let error = InnerShare::of(768, 256, Rank { idx: 0, n_ranks: 4 }, "down")
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "768 columns of `down`, which are 3 blocks of 256, cannot be divided among 4 devices, only among 1, 2 or 3"
        );
        let error = InnerShare::of(256, 256, Rank { idx: 1, n_ranks: 2 }, "down")
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "256 columns of `down`, which are a single block, cannot be divided among 2 devices"
        );
    }
}
