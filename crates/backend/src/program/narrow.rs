//! [`Program::narrowed`]: the program of a step that needs only some rows.
//!
//! Behind the last operation that mixes rows, only the rows that yield a result are computed. A step without results computes
//! only what later steps need.

use crate::{NetworkPart, RowSet, StepShape};

use super::{Op, OperandRole, Program, RowCount, RowKind, Stamped, Value, ValueInfo};

/// How many rows of a kind are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wanted {
    /// None.
    None,
    /// Fewer than there are.
    Some,
    /// All of them.
    All,
}

impl Wanted {
    fn of(n_wanted: usize, n_all: usize) -> Self {
        match n_wanted {
            0 => Self::None,
            _ if n_wanted < n_all => Self::Some,
            _ => Self::All,
        }
    }
}

/// The rows that a step wants: everything that a program depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepVariant {
    /// Output rows, of all tokens.
    pub outputs: Wanted,
    /// Logit rows, of all outputs.
    pub logits: Wanted,
}

impl StepVariant {
    /// All variants.
    pub const ALL: [Self; 7] = [
        Self {
            outputs: Wanted::All,
            logits: Wanted::All,
        },
        Self {
            outputs: Wanted::All,
            logits: Wanted::Some,
        },
        Self {
            outputs: Wanted::All,
            logits: Wanted::None,
        },
        Self {
            outputs: Wanted::Some,
            logits: Wanted::All,
        },
        Self {
            outputs: Wanted::Some,
            logits: Wanted::Some,
        },
        Self {
            outputs: Wanted::Some,
            logits: Wanted::None,
        },
        Self {
            outputs: Wanted::None,
            logits: Wanted::None,
        },
    ];

    /// Returns the variant of a step.
    pub fn of(shape: &StepShape) -> Self {
        Self {
            outputs: Wanted::of(shape.n_outputs, shape.n_tokens),
            logits: Wanted::of(shape.n_logits, shape.n_outputs),
        }
    }

    /// Returns its index in [`Self::ALL`].
    pub fn index(self) -> usize {
        let found = Self::ALL.iter().position(|variant| *variant == self);
        found.expect("logit rows are output rows")
    }
}

impl Program {
    /// Returns the program for the steps of a variant.
    #[must_use]
    pub fn narrowed(&self, variant: StepVariant) -> Self {
        let mut program = self.clone();
        if variant.outputs == Wanted::None {
            program.want_nothing();
        } else if variant.logits == Wanted::None {
            program.want_no_logits();
        }
        // An operation without a reader must not keep all rows.
        program.remove_unread();
        match variant.outputs {
            Wanted::None => {}
            Wanted::Some => program.pick_early(),
            Wanted::All => program.drop_gathers(),
        }
        if variant.logits == Wanted::All {
            program.name_logit_rows();
        }
        program.infer_all();
        program
    }

    fn want_nothing(&mut self) {
        if let Some(Stamped {
            op: Op::Sample { logits, rows },
            ..
        }) = self.ops.last_mut()
        {
            (*logits, *rows) = (None, None);
        }
    }

    fn want_no_logits(&mut self) {
        if let Some(Stamped {
            op: Op::Sample { logits, .. },
            ..
        }) = self.ops.last_mut()
        {
            *logits = None;
        }
    }

    /// Removes the operations that pick all tokens.
    fn drop_gathers(&mut self) {
        let mut renamed = Vec::new();
        self.ops.retain(|Stamped { op, .. }| match op {
            Op::Gather {
                rows: RowSet::Outputs,
                x,
                y,
            } => {
                renamed.push((*y, *x));
                false
            }
            _ => true,
        });
        self.rename_reads(0, &renamed);
    }

    /// Replaces the operations that pick all output rows. Their number is bounded by that of logit rows.
    fn name_logit_rows(&mut self) {
        for Stamped { op, .. } in &mut self.ops {
            if let Op::Gather {
                rows: RowSet::LogitsOfOutputs,
                x,
                y,
            } = *op
            {
                *op = Op::AsLogits { x, y };
            }
        }
    }

    /// Returns the index of the first operation that needs output rows only. It follows the last operation that needs all rows.
    /// It also follows the readers of earlier routes and choices, since a device cannot gather these.
    fn first_of_outputs(&self) -> usize {
        let last = (self.ops.iter()).rposition(|Stamped { op, .. }| op.needs_all_rows());
        let mut first = last.map_or(0, |op_idx| op_idx + 1);
        let mut is_bound = vec![false; self.values.len()];
        let mut n_seen = 0;
        loop {
            for value in (self.ops[n_seen..first].iter()).flat_map(|Stamped { op, .. }| op.results()) {
                let info = self.values[value.index()];
                let is_picked = info
                    == ValueInfo::Floats {
                        rows: RowCount::TOKENS,
                        width: info.width(),
                    };
                is_bound[value.index()] = info.rows().kind == RowKind::Tokens && !is_picked;
            }
            n_seen = first;
            let reads_bound = |stamped: &Stamped| stamped.op.reads().any(|value| is_bound[value.index()]);
            match self.ops[first..].iter().rposition(reads_bound) {
                Some(behind) => first += behind + 1,
                None => return first,
            }
        }
    }

    /// Gathers the output rows right after the last operation that needs all rows.
    fn pick_early(&mut self) {
        let first_after = self.first_of_outputs();
        let before = self.ops[..first_after].last();
        let part = before.map_or(NetworkPart::Common, |stamped| stamped.part);
        let written_before: Vec<bool> = {
            let mut is_written = vec![false; self.values.len()];
            for Stamped { op, .. } in &self.ops[..first_after] {
                for value in op.results() {
                    is_written[value.index()] = true;
                }
            }
            is_written
        };
        let has_tokens = |value: Value| {
            matches!(
                self.values[value.index()],
                ValueInfo::Floats {
                    rows: RowCount {
                        kind: RowKind::Tokens,
                        ..
                    },
                    ..
                }
            )
        };
        let mut picked: Vec<(Value, Value)> = Vec::new();
        let mut read: Vec<Value> = Vec::new();
        for Stamped { op, .. } in &self.ops[first_after..] {
            for value in op.reads() {
                if written_before[value.index()] && has_tokens(value) && !read.contains(&value) {
                    read.push(value);
                }
            }
        }
        let mut gathers = Vec::new();
        for x in read {
            let y = self.add_value(self.values[x.index()]);
            picked.push((x, y));
            let op = Op::Gather {
                rows: RowSet::Outputs,
                x,
                y,
            };
            gathers.push(Stamped { op, part });
        }
        self.rename_reads(first_after, &picked);
        // The later values have output rows already.
        let mut renamed = Vec::new();
        let mut op_idx = 0;
        self.ops.retain(|Stamped { op, .. }| {
            op_idx += 1;
            match op {
                Op::Gather {
                    rows: RowSet::Outputs,
                    x,
                    y,
                } if op_idx > first_after => {
                    renamed.push((*y, *x));
                    false
                }
                _ => true,
            }
        });
        self.rename_reads(first_after, &renamed);
        self.ops.splice(first_after..first_after, gathers);
    }

    /// Replaces operands that are read from an operation on, by pairs of old and new values. A new value may be an old one of
    /// an earlier pair.
    fn rename_reads(&mut self, first: usize, renamed: &[(Value, Value)]) {
        for Stamped { op, .. } in &mut self.ops[first..] {
            op.visit(&mut |value, role| {
                if role == OperandRole::Result {
                    return;
                }
                while let Some((_, new)) = renamed.iter().find(|(old, _)| old == value) {
                    *value = *new;
                }
            });
        }
    }

    /// Removes operations without an effect whose results have no reader.
    fn remove_unread(&mut self) {
        let mut is_read = vec![false; self.values.len()];
        let mut kept = Vec::with_capacity(self.ops.len());
        for stamped in std::mem::take(&mut self.ops).into_iter().rev() {
            let op = &stamped.op;
            if op.has_effect() || op.results().any(|value| is_read[value.index()]) {
                for value in op.reads() {
                    is_read[value.index()] = true;
                }
                kept.push(stamped);
            }
        }
        kept.reverse();
        self.ops = kept;
    }
}
