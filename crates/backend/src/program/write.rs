//! Shorthands with which a network writes the operations that most networks have.

use crate::{Activation, RowSet};

use super::{CarriedValue, ExpertInputKind, LinearId, NormId, Op, Program, RopeId, Value};

/// Each appends an operation and returns its result. They panic as [`Program::push_last`].
impl Program {
    /// Appends [`Op::Linear`].
    pub fn linear(&mut self, linear: LinearId, x: Value) -> Value {
        self.push(|y| Op::Linear { linear, x, y })
    }

    /// Appends [`Op::HeadsLinear`].
    pub fn heads_linear(&mut self, heads: LinearId, n_heads: usize, x: Value) -> Value {
        self.push(|y| Op::HeadsLinear { heads, n_heads, x, y })
    }

    /// Appends [`Op::Norm`].
    pub fn norm(&mut self, norm: NormId, x: Value) -> Value {
        self.push(|y| Op::Norm { norm, x, y })
    }

    /// Appends [`Op::Norm`], if there is one; otherwise returns `x`.
    pub fn norm_if(&mut self, norm: Option<NormId>, x: Value) -> Value {
        norm.map_or(x, |norm| self.norm(norm, x))
    }

    /// Appends [`Op::Rope`], if there is one; otherwise returns `x`.
    pub fn rope_if(&mut self, rope: Option<RopeId>, x: Value) -> Value {
        rope.map_or(x, |rope| self.push(|y| Op::Rope { rope, x, y }))
    }

    /// Appends [`Op::Activation`].
    pub fn activation(&mut self, activation: Activation, x: Value) -> Value {
        self.push(|y| Op::Activation {
            activation,
            x,
            up: None,
            y,
        })
    }

    /// Appends [`Op::Activation`] times `up`.
    pub fn gated(&mut self, activation: Activation, x: Value, up: Value) -> Value {
        self.push(|y| Op::Activation {
            activation,
            x,
            up: Some(up),
            y,
        })
    }

    /// Appends [`Op::Add`]: `x + scale * delta`.
    pub fn add(&mut self, scale: f32, x: Value, delta: Value) -> Value {
        self.push(|y| Op::Add { scale, x, delta, y })
    }

    /// Appends [`Op::Scale`] without a cap.
    pub fn scale(&mut self, scale: f32, x: Value) -> Value {
        self.push(|y| Op::Scale {
            scale,
            cap: None,
            x,
            y,
        })
    }

    /// Appends the hyperbolic tangent: [`Op::Scale`] with a cap of 1.
    pub fn tanh(&mut self, x: Value) -> Value {
        self.push(|y| Op::Scale {
            scale: 1.0,
            cap: Some(1.0),
            x,
            y,
        })
    }

    /// Appends [`Op::TakeColumns`].
    pub fn take_columns(&mut self, x: Value, first: usize, width: usize) -> Value {
        self.push(|y| Op::TakeColumns { first, width, x, y })
    }

    /// Appends [`Op::Join`].
    pub fn join(&mut self, n_parts: usize, left: Value, right: Value) -> Value {
        self.push(|y| Op::Join {
            n_parts,
            left,
            right,
            y,
        })
    }

    /// Appends [`Op::Gather`].
    pub fn gather(&mut self, rows: RowSet, x: Value) -> Value {
        self.push(|y| Op::Gather { rows, x, y })
    }

    /// Appends [`Op::ExpertsLinear`].
    pub fn experts_linear(
        &mut self,
        experts: LinearId,
        routes: Value,
        rows: ExpertInputKind,
        x: Value,
    ) -> Value {
        self.push(|y| Op::ExpertsLinear {
            experts,
            routes,
            rows,
            x,
            y,
        })
    }

    /// Appends [`Op::Combine`].
    pub fn combine(&mut self, routes: Value, x: Value, carried: CarriedValue) -> Value {
        self.push(|y| Op::Combine {
            routes,
            x,
            carried,
            y,
        })
    }
}
