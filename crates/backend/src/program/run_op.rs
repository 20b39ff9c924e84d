//! [`Run::op`]: the call of a backend for each operation.

use crate::{
    Backend, Carried, ColumnGather, DeltaNetRows, ExpertInput, JoinedRows, LinearAddNorm, LinearJob, Routed,
    SsmRows,
};

use super::{
    CarriedValue, ExpertInputKind, Op, ValueColumns,
    run::{Done, MAX_GROUP, Run},
};

impl<B: Backend> Run<'_, B> {
    /// Runs one operation.
    #[expect(clippy::too_many_lines, reason = "one arm for each operation")]
    pub(super) fn op(&mut self, op: &Op) -> Done {
        let shape = self.shape;
        let n_tokens = shape.n_tokens;
        match *op {
            Op::Embed { table, scale, y } => {
                let idx = table.0 as usize;
                let matrix = self.tables.matrices[idx]
                    .take()
                    .expect("an operation names a matrix once");
                let done = self.write([y], |backend, _, [y]| backend.embed(&matrix, scale, n_tokens, y));
                self.tables.matrices[idx] = Some(matrix);
                done
            }
            Op::HiddenInputs { width, y } => self.write([y], |backend, _, [y]| {
                backend.take_hidden_inputs(n_tokens, width, y)
            }),
            Op::AddInputRows { part, y, .. } => {
                let width = self.width(y);
                self.write([y], |backend, _, [y]| {
                    backend.add_input_rows(part, n_tokens, width, y)
                })
            }
            Op::AddRow { row, y, .. } => {
                let (n_rows, width) = (self.rows(y), self.width(y));
                self.bind_vector(row, |run, row| {
                    run.write([y], |backend, _, [y]| backend.add_row(row, n_rows, width, y))
                })
            }
            Op::AddPositions { table, y, .. } => {
                let width = self.width(y);
                self.bind_vector(table, |run, table| {
                    run.write([y], |backend, _, [y]| {
                        backend.add_positions(table, n_tokens, width, y)
                    })
                })
            }
            Op::ScaleByPosition { temperature, y, .. } => {
                let width = self.width(y);
                self.write([y], |backend, _, [y]| {
                    backend.scale_by_position(temperature, n_tokens, width, y)
                })
            }
            Op::Norm { norm, x, y } => {
                let (n_rows, width) = (self.rows(x), self.width(x));
                let is_in_place = self.program.slot(x) == self.program.slot(y);
                self.bind(norm, |run, norm| {
                    run.write([y], |backend, read, [y]| {
                        if is_in_place {
                            backend.norm_in_place(norm, n_rows, width, y)
                        } else {
                            backend.norm(norm, read.of(x), n_rows * (width / norm.width), y)
                        }
                    })
                })
            }
            Op::Linear { linear, x, y } => {
                let n_rows = self.rows(x);
                self.bind_linear(linear, |run, linear| {
                    run.write([y], |backend, read, [y]| {
                        backend.linear(linear, read.of(x), n_rows, y)
                    })
                })
            }
            Op::HeadsLinear { heads, n_heads, x, y } => {
                let n_rows = self.rows(x);
                self.bind_linear(heads, |run, heads| {
                    run.write([y], |backend, read, [y]| {
                        backend.heads_linear(heads, n_heads, n_rows, read.of(x), y)
                    })
                })
            }
            Op::Rope { rope, y, .. } => {
                let width = self.width(y);
                self.bind(rope, |run, rope| {
                    run.write([y], |backend, _, [y]| backend.rope(rope, n_tokens, width, y))
                })
            }
            Op::StoreKv { layer_idx, k, v } => self.write([], |backend, read, []| {
                backend.store_kv(layer_idx, n_tokens, read.of(k), read.of(v))
            }),
            Op::StoreLatent { layer_idx, row } => self.write([], |backend, read, []| {
                backend.store_latent(layer_idx, n_tokens, read.of(row))
            }),
            Op::Attention { attention, q, y } => self.bind(attention, |run, attention| {
                run.write([y], |backend, read, [y]| {
                    backend.attention(attention, shape, read.of(q), y)
                })
            }),
            Op::Activation {
                activation, up, y, ..
            } => {
                let (n_rows, width) = (self.rows(y), self.width(y));
                self.write([y], |backend, read, [y]| {
                    backend.activation(activation, n_rows, width, y, up.map(|up| read.of(up)))
                })
            }
            Op::Xielu { xielu, y, .. } => {
                let (n_rows, width) = (self.rows(y), self.width(y));
                self.write([y], |backend, _, [y]| backend.xielu(xielu, n_rows, width, y))
            }
            Op::CutBelow { cutoff, y, .. } => {
                let (n_rows, width) = (self.rows(y), self.width(y));
                self.write([y], |backend, _, [y]| backend.cut_below(cutoff, n_rows, width, y))
            }
            Op::Add { scale, delta, y, .. } => {
                let (n_rows, width) = (self.rows(y), self.width(y));
                self.write([y], |backend, read, [y]| {
                    backend.add(scale, n_rows, width, y, read.of(delta))
                })
            }
            Op::Scale { scale, cap, y, .. } => {
                let (n_rows, width) = (self.rows(y), self.width(y));
                self.write([y], |backend, _, [y]| {
                    backend.scale_logits(scale, cap, n_rows, width, y)
                })
            }
            Op::TakeColumns { first, width, x, y } => self.take_columns(ValueColumns { x, first }, width, y),
            Op::Move { x, y } | Op::Tap { x, y, .. } => {
                let width = self.width(x);
                self.take_columns(ValueColumns { x, first: 0 }, width, y)
            }
            Op::Join {
                n_parts,
                left,
                right,
                y,
            } => {
                let n_rows = self.rows(y) * n_parts;
                let widths = [left, right].map(|value| self.width(value) / n_parts);
                self.write([y], |backend, read, [y]| {
                    let [left, right] =
                        [(left, widths[0]), (right, widths[1])].map(|(value, width)| JoinedRows {
                            rows: read.of(value),
                            width,
                        });
                    backend.join(n_rows, left, right, y)
                })
            }
            Op::Gather { rows, x, y } => {
                let width = self.width(x);
                self.write([y], |backend, read, [y]| {
                    backend.gather(rows, shape, width, read.of(x), y)
                })
            }
            // Both have the same memory.
            Op::AsLogits { .. } => Ok(()),
            Op::Route { router, x, y } => {
                let n_rows = self.rows(x);
                let slot = self.program.slot(y);
                let mut routes = self.tables.routes[slot]
                    .take()
                    .expect("results have memory of their own");
                let done = self.bind(router, |run, router| {
                    run.write([], |backend, read, []| {
                        backend.route(router, n_rows, read.of(x), &mut routes)
                    })
                });
                self.tables.routes[slot] = Some(routes);
                done
            }
            Op::ExpertsLinear {
                experts,
                routes,
                rows,
                x,
                y,
            } => {
                let [n_rows, n_used] = self.routed(routes);
                self.bind_linear(experts, |run, experts| {
                    run.write([y], |backend, read, [y]| {
                        let routed = Routed {
                            routes: read.routes(routes),
                            n_rows,
                            n_used,
                        };
                        let input = match rows {
                            ExpertInputKind::OfRows => ExpertInput::Rows(read.of(x)),
                            ExpertInputKind::OfChoices => ExpertInput::Choices(read.of(x)),
                        };
                        backend.experts_linear(experts, routed, input, y)
                    })
                })
            }
            Op::WeighChoices { routes, y, .. } => {
                let ([n_rows, n_used], width) = (self.routed(routes), self.width(y));
                self.write([y], |backend, read, [y]| {
                    let routed = Routed {
                        routes: read.routes(routes),
                        n_rows,
                        n_used,
                    };
                    backend.weigh_choices(routed, width, y)
                })
            }
            Op::Combine {
                routes,
                x,
                carried,
                y,
            } => {
                let ([n_rows, n_used], width) = (self.routed(routes), self.width(y));
                self.write([y], |backend, read, [y]| {
                    let routed = Routed {
                        routes: read.routes(routes),
                        n_rows,
                        n_used,
                    };
                    let carried = match carried {
                        CarriedValue::Nothing => Carried::Nothing,
                        CarriedValue::Whole(_) => Carried::Whole,
                        CarriedValue::Gated(_, gates) => Carried::Gated(read.of(gates)),
                    };
                    backend.combine(routed, width, read.of(x), carried, y)
                })
            }
            Op::ShortConv { conv, x, y } => self.bind(conv, |run, conv| {
                run.write([y], |backend, read, [y]| {
                    backend.short_conv(conv, shape, read.of(x), y)
                })
            }),
            Op::SsmScan { scan, x, b, c, dt, y } => self.bind(scan, |run, scan| {
                run.write([dt, y], |backend, read, [dt, y]| {
                    let [x, b, c] = [x, b, c].map(|columns| read.columns(columns));
                    backend.ssm_scan(scan, shape, SsmRows { x, b, c, dt }, y)
                })
            }),
            Op::DeltaNet {
                net,
                qkv,
                alpha,
                beta,
                y,
            } => self.bind(net, |run, net| {
                run.write([qkv, alpha, beta, y], |backend, _, [qkv, alpha, beta, y]| {
                    backend.delta_net(net, shape, DeltaNetRows { qkv, alpha, beta }, y)
                })
            }),
            Op::RepeatRows { x, y, .. } => {
                let streams = self.streams(x, y);
                self.write([y], |backend, read, [y]| {
                    backend.repeat_rows(streams, read.of(x), y)
                })
            }
            Op::MatchMagnitudes { first, y, .. } => {
                let streams = self.streams(first, y);
                self.write([y], |backend, read, [y]| {
                    backend.match_magnitudes(streams, read.of(first), y)
                })
            }
            Op::PredictStreams {
                factors,
                y_first,
                y_others,
                ..
            } => {
                let streams = self.streams(y_first, y_others);
                self.write([y_first, y_others], |backend, read, [first, others]| {
                    backend.predict_streams(streams, read.of(factors), first, others)
                })
            }
            Op::CorrectStreams {
                factors,
                predicted,
                y_first,
                y_others,
                ..
            } => {
                let streams = self.streams(y_first, y_others);
                self.write([y_first, y_others], |backend, read, [first, others]| {
                    backend.correct_streams(streams, read.of(factors), read.of(predicted), first, others)
                })
            }
            Op::AddToOthers { x, y, .. } => {
                let streams = self.streams(x, y);
                self.write([y], |backend, read, [y]| {
                    backend.add_to_others(streams, read.of(x), y)
                })
            }
            Op::MultiplyByRow { row, y, .. } => {
                let streams = self.streams(y, y);
                self.bind_vector(row, |run, row| {
                    run.write([y], |backend, _, [y]| backend.multiply_by_row(streams, row, y))
                })
            }
            Op::AllReduce { y, .. } => {
                let (n_rows, width) = (self.rows(y), self.width(y));
                self.write([y], |backend, _, [y]| backend.all_reduce(n_rows, width, y))
            }
            Op::AllGather {
                width, x, parts, y, ..
            } => {
                let (n_rows, part_width) = (self.rows(y), self.width(x));
                self.write([x, parts, y], |backend, _, [part, parts, rows]| {
                    backend.all_gather(ColumnGather {
                        n_rows,
                        width,
                        part_width,
                        part,
                        parts,
                        rows,
                    })
                })
            }
            Op::MeanOfSequences { x, y } => {
                let width = self.width(x);
                self.write([y], |backend, read, [y]| {
                    backend.mean_of_sequences(shape, width, read.of(x), y)
                })
            }
            Op::Sample { logits, rows } => self.sample(logits, rows),
            Op::LinearGroup { x, ref products } => match products[..] {
                [a, b] => self.group(x, [a, b]),
                [a, b, c] => self.group(x, [a, b, c]),
                [a, b, c, d] => self.group(x, [a, b, c, d]),
                [a, b, c, d, e] => self.group(x, [a, b, c, d, e]),
                [a, b, c, d, e, f] => self.group(x, [a, b, c, d, e, f]),
                _ => unreachable!("a group has 2 to {MAX_GROUP} products"),
            },
            Op::LinearGated {
                activation,
                x,
                gate,
                up,
                y,
            } => {
                let n_rows = self.rows(x);
                self.pair([gate, up.linear], |run, [gate, up_linear]| {
                    run.write([y, up.y], |backend, read, [y, scratch]| {
                        let gate = LinearJob {
                            linear: gate,
                            output: y,
                        };
                        let up = LinearJob {
                            linear: up_linear,
                            output: scratch,
                        };
                        backend.linear_gated(activation, read.of(x), n_rows, gate, up)
                    })
                })
            }
            Op::ExpertsGated {
                activation,
                routes,
                x,
                gate,
                up,
                y,
            } => {
                let [n_rows, n_used] = self.routed(routes);
                self.pair([gate, up.linear], |run, [gate, up_linear]| {
                    run.write([y, up.y], |backend, read, [y, scratch]| {
                        let routed = Routed {
                            routes: read.routes(routes),
                            n_rows,
                            n_used,
                        };
                        let gate = LinearJob {
                            linear: gate,
                            output: y,
                        };
                        let up = LinearJob {
                            linear: up_linear,
                            output: scratch,
                        };
                        backend.experts_gated(activation, routed, ExpertInput::Rows(read.of(x)), gate, up)
                    })
                })
            }
            Op::AddNorm {
                scale,
                delta,
                norm,
                sum,
                normed,
                ..
            } => {
                let n_rows = self.rows(sum);
                self.bind(norm, |run, norm| {
                    run.write([sum, normed], |backend, read, [sum, normed]| {
                        backend.add_norm(scale, read.of(delta), norm, n_rows, sum, normed)
                    })
                })
            }
            Op::LinearAddNorm {
                product,
                input,
                scale,
                norm,
                sum,
                normed,
                ..
            } => {
                let n_rows = self.rows(sum);
                self.bind_linear(product.linear, |run, linear| {
                    run.bind(norm, |run, norm| {
                        run.write(
                            [sum, normed, product.y],
                            |backend, read, [hidden, normed, delta]| {
                                let input = read.of(input);
                                let job = LinearAddNorm {
                                    linear,
                                    input,
                                    scale,
                                    delta,
                                    hidden,
                                    norm,
                                    normed,
                                };
                                backend.linear_add_norm(job, n_rows)
                            },
                        )
                    })
                })
            }
            Op::RopeStoreKv { heads, y_q, y_k } => self.heads(heads, |run, bound| {
                run.write([y_q, y_k], |backend, read, [q, k]| {
                    let job = bound.job(q, k, read.of(heads.v));
                    backend.rope_store_kv(job, n_tokens)
                })
            }),
            Op::RopeAttention { heads, attention, y } => self.heads(heads, |run, bound| {
                run.bind(attention, |run, attention| {
                    run.write([heads.q, heads.k, y], |backend, read, [q, k, y]| {
                        let job = bound.job(q, k, read.of(heads.v));
                        backend.rope_attention(job, attention, shape, y)
                    })
                })
            }),
        }
    }
}
