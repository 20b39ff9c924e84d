//! Writes the program of a network: one for all architectures, in the order of the papers.
//!
//! A layer adds two halves to the stream: a mixer and a feed-forward network. Each reads the stream through a norm:
//!
//! ```text
//! stream += project(mix(norm(stream)))
//! stream += ffn(norm(stream))
//! ```
//!
//! A network that norms the stream after each addition has no norm before its halves; these read the stream itself. Some
//! layers have one half only. If there are several streams, layers work on the first, and `alt_up` handles the others.
//!
//! Every operation is written for the rows of all tokens; which of them a step needs, which operations a device fuses and
//! where values lie follows from passes over the program. The part of the network with which an operation is stamped decides
//! where it runs: a norm belongs to the half before it.

use tokenmill_backend::{
    NetworkPart, RowSet,
    program::{NormId, Op, Program, Value},
};

use crate::{
    Descriptor, HeadPart, Residual,
    alt_up::Streams,
    decision_head::DecisionHead,
    mixers::Mixed,
    network::{Layer, Network},
    pooler::Pooler,
};

/// The rows between two layers.
#[derive(Clone, Copy)]
struct Stream {
    hidden: Value,
    /// The stream after the norm that the next half begins with, if it has one.
    normed: Value,
    /// All streams but the first, if there are several.
    others: Option<Value>,
}

impl Network {
    /// Writes the network's program.
    pub(crate) fn write(&self, descriptor: &Descriptor) -> Program {
        let taps = descriptor.tower.as_ref().map_or(&[][..], |tower| &tower.taps);
        let (kv_layers, n_ranks) = (descriptor.kv_layers(), descriptor.n_ranks);
        let mut program = Program::new(self.weights.clone(), kv_layers);
        let mut stream = self.write_input(&mut program);
        let embeddings = self.layer_embeddings.as_ref();
        let embeddings = embeddings.map(|embeddings| embeddings.write(&mut program, stream.hidden));
        if let Some(alt_up) = &self.alt_up {
            let Streams { first, others } = alt_up.write_begin(&mut program, stream.hidden);
            stream = Stream {
                hidden: first,
                normed: first,
                others: Some(others),
            };
        } else {
            stream.normed = program.norm_if(self.layers[0].first_norm(), stream.hidden);
        }
        let n_head_layers = self.decision.as_ref().map_or(0, |head| head.n_layers);
        let trunk = &self.layers[..self.layers.len() - n_head_layers];
        for (layer_idx, layer) in trunk.iter().enumerate() {
            let next_norm = match trunk.get(layer_idx + 1) {
                Some(next) => next.first_norm(),
                None => self.output_norm,
            };
            let writer = LayerWriter {
                network: self,
                layer,
                layer_idx,
                next_norm,
                embeddings,
                n_ranks,
            };
            stream = writer.write(&mut program, stream);
            if taps.contains(&layer_idx) {
                program.push(|y| Op::Tap {
                    layer_idx,
                    x: stream.hidden,
                    y,
                });
            }
        }
        if let Some(head) = &self.decision {
            stream = self.write_decision(&mut program, head, n_ranks, stream.normed);
        }
        self.write_output(&mut program, stream);
        program
    }

    /// Writes the head that scores options over the trunk's rows: its layers once for each question type, layer by layer, and the
    /// scores side by side.
    fn write_decision(
        &self,
        program: &mut Program,
        head: &DecisionHead,
        n_ranks: usize,
        rows: Value,
    ) -> Stream {
        let first = self.layers.len() - head.n_layers;
        program.enter(NetworkPart::Mixer(first));
        let first_norm = self.layers[first].first_norm();
        let mut streams = head.types.map(|row| {
            let hidden = program.push(|y| Op::AddRow { row, x: rows, y });
            Stream {
                hidden,
                normed: program.norm_if(first_norm, hidden),
                others: None,
            }
        });
        for (layer_idx, layer) in self.layers.iter().enumerate().skip(first) {
            let next = self.layers.get(layer_idx + 1);
            let writer = LayerWriter {
                network: self,
                layer,
                layer_idx,
                next_norm: next.map_or(Some(head.norm), Layer::first_norm),
                embeddings: None,
                n_ranks,
            };
            streams = streams.map(|stream| writer.write(program, stream));
        }
        program.enter(NetworkPart::Output);
        let [choice, score, yes_no] = streams.map(|stream| head.write_scores(program, stream.normed));
        let two = program.join(1, choice, score);
        let scores = program.join(1, two, yes_no);
        Stream {
            hidden: scores,
            normed: scores,
            others: None,
        }
    }

    /// Writes the stream before the first layer.
    fn write_input(&self, program: &mut Program) -> Stream {
        program.enter(NetworkPart::Input);
        let (table, scale) = (self.token_embd.matrix, self.embedding_scale);
        let mut hidden = program.push(|y| Op::Embed { table, scale, y });
        if let Some(entry) = &self.nextn {
            hidden = entry.write(program, hidden);
        }
        if let Some(row) = self.token_type {
            hidden = program.push(|y| Op::AddRow { row, x: hidden, y });
        }
        if let Some(table) = self.positions {
            hidden = program.push(|y| Op::AddPositions { table, x: hidden, y });
        }
        hidden = program.norm_if(self.embedding_norm, hidden);
        Stream {
            hidden,
            normed: hidden,
            others: None,
        }
    }

    /// Writes the operations after the last layer.
    fn write_output(&self, program: &mut Program, stream: Stream) {
        program.enter(NetworkPart::Output);
        let mut rows = stream.normed;
        if let (Some(alt_up), Some(others)) = (&self.alt_up, stream.others) {
            let hidden = alt_up.write_end(
                program,
                Streams {
                    first: stream.hidden,
                    others,
                },
            );
            rows = program.norm_if(self.output_norm, hidden);
        }
        let pooled = self.pooler.as_ref().map(|pooler| pooler.write(program, rows));
        // The mean of a sequence is one row, whose logits no step requests.
        let has_rows = !self.pooler.as_ref().is_some_and(Pooler::reads_all_rows);
        let outputs = has_rows.then(|| program.gather(RowSet::Outputs, rows));
        let logits = outputs.filter(|_| self.has_head);
        let logits = logits.map(|rows| self.write_logits(program, rows));
        let rows = pooled.or(outputs);
        program.push_last(Op::Sample { logits, rows });
    }

    fn write_logits(&self, program: &mut Program, rows: Value) -> Value {
        let head = self.output.unwrap_or(self.token_embd);
        let x = program.gather(RowSet::LogitsOfOutputs, rows);
        let mut logits = program.linear(head, x);
        if let Some(HeadPart { n_ranks, .. }) = self.head_part {
            let (x, width) = (logits, self.token_embd.n_out);
            [_, logits] = program.push_results(|[parts, y]| Op::AllGather {
                n_ranks,
                width,
                x,
                parts,
                y,
            });
        }
        if self.logit_scale != 1.0 || self.logit_softcap.is_some() {
            let (scale, cap, x) = (self.logit_scale, self.logit_softcap, logits);
            logits = program.push(|y| Op::Scale { scale, cap, x, y });
        }
        logits
    }
}

/// Writes one layer.
struct LayerWriter<'a> {
    network: &'a Network,
    layer: &'a Layer,
    layer_idx: usize,
    /// The norm with which the next layer, or the output, begins.
    next_norm: Option<NormId>,
    /// The embeddings of all layers.
    embeddings: Option<Value>,
    n_ranks: usize,
}

impl LayerWriter<'_> {
    fn write(&self, program: &mut Program, mut stream: Stream) -> Stream {
        program.enter(NetworkPart::Mixer(self.layer_idx));
        if let (Some(alt_up), Some(others)) = (&self.layer.alt_up, stream.others) {
            let Streams { first, others } = alt_up.write_predict(
                program,
                Streams {
                    first: stream.hidden,
                    others,
                },
            );
            let normed = program.norm_if(self.layer.first_norm(), first);
            stream = Stream {
                hidden: first,
                normed,
                others: Some(others),
            };
        }
        let predicted = stream.hidden;
        let input = if self.layer.mixer_norm.is_some() {
            stream.normed
        } else {
            stream.hidden
        };
        let mixer = self.layer.mixer.as_ref();
        let mixed = mixer.map(|mixer| mixer.write(program, &self.network.ropes, input));
        stream = match self.layer.residual {
            Residual::Sequential => self.write_halves(program, stream, mixed),
            Residual::Parallel | Residual::ParallelTwoNorms => self.write_parallel(program, stream, mixed),
        };
        if self.has_end() {
            self.write_end(program, stream, predicted)
        } else {
            stream
        }
    }

    /// Returns whether something follows both halves, before the next norm.
    fn has_end(&self) -> bool {
        let layer = self.layer;
        layer.embedding.is_some()
            || layer.output_scale.is_some()
            || layer.control.is_some()
            || layer.input_part.is_some()
            || layer.alt_up.is_some()
    }

    /// Returns the norm after both halves.
    fn norm_behind(&self) -> Option<NormId> {
        if self.has_end() { None } else { self.next_norm }
    }

    /// Writes both halves, the second of which reads the stream with the first.
    fn write_halves(&self, program: &mut Program, mut stream: Stream, mixed: Option<Mixed>) -> Stream {
        let layer = self.layer;
        if let Some(mixed) = mixed {
            let delta = self.write_projection(program, mixed);
            let input = stream.normed;
            stream.hidden =
                if let (Some(first), Some(second)) = (layer.mixer_sum_norm, layer.mixer_second_norm) {
                    let sum = program.add(1.0, delta, stream.hidden);
                    let sum = program.norm(first, sum);
                    let sum = self.write_sum(program, stream.hidden, sum);
                    program.norm(second, sum)
                } else {
                    let sum = self.write_sum(program, stream.hidden, delta);
                    program.norm_if(layer.mixer_sum_norm, sum)
                };
            if let Some(alt_up) = &layer.alt_up {
                stream.hidden = alt_up.laurel.write(program, stream.hidden, input);
            }
            let norm = if layer.ffn.is_some() {
                layer.ffn_norm
            } else {
                self.norm_behind()
            };
            stream.normed = program.norm_if(norm, stream.hidden);
        }
        if layer.ffn.is_some() {
            let input = if layer.ffn_norm.is_some() {
                stream.normed
            } else {
                stream.hidden
            };
            let delta = self.write_ffn(program, stream.hidden, input);
            let sum = self.write_sum(program, stream.hidden, delta);
            stream.hidden = program.norm_if(layer.ffn_sum_norm, sum);
            stream.normed = program.norm_if(self.norm_behind(), stream.hidden);
        }
        stream
    }

    /// Writes both halves, which read the layer's input.
    fn write_parallel(&self, program: &mut Program, mut stream: Stream, mixed: Option<Mixed>) -> Stream {
        let input = match self.layer.ffn_norm {
            Some(norm) => program.norm(norm, stream.hidden),
            None => stream.normed,
        };
        let delta = self.write_ffn(program, stream.hidden, input);
        let sum = self.write_sum(program, stream.hidden, delta);
        program.enter(NetworkPart::Mixer(self.layer_idx));
        let delta = self.write_projection(program, mixed.expect("halves side by side are two"));
        stream.hidden = self.write_sum(program, sum, delta);
        stream.normed = program.norm_if(self.norm_behind(), stream.hidden);
        stream
    }

    /// Writes the end of a layer: corrects the streams, adds the layer's own embedding, scales the stream, adds a control vector
    /// and a part of non-token inputs, and norms the stream for the next layer. With several streams, the next layer does its
    /// own norm.
    fn write_end(&self, program: &mut Program, mut stream: Stream, predicted: Value) -> Stream {
        let layer = self.layer;
        let embedding = layer.embedding.as_ref().zip(self.embeddings);
        if let (Some(alt_up), Some(others)) = (&layer.alt_up, stream.others) {
            let streams = Streams {
                first: stream.hidden,
                others,
            };
            let (Streams { first, mut others }, row) = alt_up.write_correct(program, streams, predicted);
            if let Some((embedding, all)) = embedding {
                let x = embedding.write(program, all, row);
                others = program.push(|y| Op::AddToOthers { x, others, y });
            }
            return Stream {
                hidden: first,
                normed: first,
                others: Some(others),
            };
        }
        if let Some((embedding, all)) = embedding {
            let delta = embedding.write(program, all, stream.hidden);
            stream.hidden = self.write_sum(program, stream.hidden, delta);
        }
        if let Some(scale) = layer.output_scale {
            stream.hidden = program.scale(scale, stream.hidden);
        }
        let x = stream.hidden;
        if let Some(row) = layer.control {
            stream.hidden = program.push(|y| Op::AddRow { row, x, y });
        }
        let x = stream.hidden;
        if let Some(part) = layer.input_part {
            stream.hidden = program.push(|y| Op::AddInputRows { part, x, y });
        }
        stream.normed = program.norm_if(self.next_norm, stream.hidden);
        stream
    }

    /// Writes the mixer's output: in a shard, the sum over all ranks.
    fn write_projection(&self, program: &mut Program, mixed: Mixed) -> Value {
        let mixer = self.layer.mixer.as_ref().expect("rows were mixed");
        let projected = mixer.write_projection(program, mixed);
        let reduced = self.write_reduced(program, projected);
        program.norm_if(self.layer.mixer_post_norm, reduced)
    }

    fn write_ffn(&self, program: &mut Program, stream: Value, input: Value) -> Value {
        program.enter(NetworkPart::Ffn(self.layer_idx));
        let ffn = self
            .layer
            .ffn
            .as_ref()
            .expect("a layer with a feed-forward network");
        let rows = ffn.write(program, stream, input);
        let reduced = self.write_reduced(program, rows);
        program.norm_if(self.layer.ffn_post_norm, reduced)
    }

    fn write_reduced(&self, program: &mut Program, x: Value) -> Value {
        if self.n_ranks == 1 {
            x
        } else {
            program.push(|y| Op::AllReduce { x, y })
        }
    }

    fn write_sum(&self, program: &mut Program, x: Value, delta: Value) -> Value {
        program.add(self.network.residual_scale, x, delta)
    }
}
