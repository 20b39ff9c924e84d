//! Statements to [`Op`]s: names become register indices, immediates constant registers, labels instruction indices.
//!
//! Functions that a kernel calls are inlined, each call with registers of its own; their `.param` variables become
//! local memory. Invariant: the tables of the submodules list every opcode with every modifier that is executed; any
//! other is [`LoadError::UnsupportedInstruction`].

mod arithmetic;
mod asynchronous;
mod convert;
mod data;
mod exchange;
mod operands;

use std::collections::HashMap;

use crate::{
    LoadError,
    kernel::{Constant, Kernel, Param, Place},
    op::{Instruction as Decoded, Op, Pred, Reg, Register},
    parse::{self, Function, Operand, Source, Statement, StatementKind, Variable, VariableSpace},
    read_first::{ReadFirst, read_first},
    types::{Space, Ty},
};

/// Largest number of threads of a thread block if the kernel sets no limit.
const MAX_THREADS: u32 = 1024;

/// Decodes one entry function.
pub(crate) fn kernel(
    source: &Source,
    globals: &HashMap<String, u64>,
    function: &Function,
    body: &[Statement],
) -> Result<Kernel, LoadError> {
    let mut decoder = Decoder {
        source,
        globals,
        kernel: Kernel {
            name: function.name.clone(),
            params: Vec::new(),
            code: Vec::new(),
            places: Vec::new(),
            n_regs32: 0,
            n_regs64: 0,
            n_preds: 0,
            constants32: Vec::new(),
            constants64: Vec::new(),
            constant_preds: Vec::new(),
            read_first: ReadFirst::default(),
            shared_bytes: 0,
            local_bytes: 0,
            max_threads: function.max_threads.unwrap_or(MAX_THREADS),
            min_blocks: function.min_blocks.unwrap_or(1),
            is_order_dependent: false,
        },
        constants32: HashMap::new(),
        constants64: HashMap::new(),
        module_shared: HashMap::new(),
        labels: Vec::new(),
        frames: Vec::new(),
        place: Place::default(),
        guard: None,
    };
    let mut params = HashMap::new();
    let mut offset = 0u32;
    for param in &function.params {
        let bytes = param.bytes.unwrap_or(0);
        let too_large = || LoadError::VariablesTooLarge {
            name: param.name.clone(),
        };
        offset = offset
            .checked_next_multiple_of(param.align)
            .ok_or_else(too_large)?;
        params.insert(param.name.clone(), Symbol::Param { offset });
        decoder.kernel.params.push(Param { offset, bytes });
        offset = offset.checked_add(bytes).ok_or_else(too_large)?;
    }
    decoder.function(&function.name, body, params)?;
    decoder.finish()
}

/// The meaning of a name.
#[derive(Clone, Copy, Debug)]
enum Symbol {
    /// A 32-bit register file entry; `bits` is the declared width (16 or 32).
    Reg32 {
        index: Reg,
        bits: u8,
    },
    Reg64(u16),
    Pred(Pred),
    /// Within the kernel's parameters.
    Param {
        offset: u32,
    },
    /// A variable at an offset of shared or local memory, or an absolute global address.
    Variable {
        space: Space,
        address: Constant,
    },
}

/// One function being decoded: the kernel itself or an inlined call.
struct Frame {
    name: String,
    /// Innermost last.
    scopes: Vec<HashMap<String, Symbol>>,
    /// Label name to index of [`Decoder::labels`].
    labels: HashMap<String, usize>,
    tables: HashMap<String, Vec<String>>,
    /// Label at which an inlined function returns; `None` in the kernel itself.
    end: Option<usize>,
}

struct Decoder<'a> {
    source: &'a Source,
    globals: &'a HashMap<String, u64>,
    kernel: Kernel,
    constants32: HashMap<Constant, Reg>,
    constants64: HashMap<Constant, u16>,
    /// Module-level shared variables that this kernel uses.
    module_shared: HashMap<String, Constant>,
    /// Instruction index of each label; branches hold label indices until [`Decoder::finish`].
    labels: Vec<Option<u32>>,
    frames: Vec<Frame>,
    place: Place,
    guard: Option<(Pred, bool)>,
}

impl Decoder<'_> {
    fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("a function is being decoded")
    }

    fn function(
        &mut self,
        name: &str,
        body: &[Statement],
        symbols: HashMap<String, Symbol>,
    ) -> Result<(), LoadError> {
        let end = if self.frames.is_empty() {
            None
        } else {
            Some(self.new_label())
        };
        let mut frame = Frame {
            name: name.to_owned(),
            scopes: vec![symbols],
            labels: HashMap::new(),
            tables: HashMap::new(),
            end,
        };
        let mut last_label = None;
        for statement in body {
            match &statement.kind {
                StatementKind::Label(label) => {
                    let index = self.labels.len();
                    self.labels.push(None);
                    frame.labels.insert(label.clone(), index);
                    last_label = Some(label);
                }
                StatementKind::BranchTargets(targets) => {
                    if let Some(label) = last_label {
                        frame.tables.insert(label.clone(), targets.clone());
                    }
                }
                _ => {}
            }
        }
        self.frames.push(frame);
        for statement in body {
            self.statement(statement)?;
        }
        if end.is_none() {
            self.guard = None;
            self.emit(Op::Exit);
        }
        self.frames.pop();
        if let Some(end) = end {
            self.labels[end] = Some(self.kernel.code.len() as u32);
        }
        Ok(())
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), LoadError> {
        self.place.line = statement.line;
        match &statement.kind {
            StatementKind::OpenScope => self.frame().scopes.push(HashMap::new()),
            StatementKind::CloseScope => {
                self.frame().scopes.pop();
            }
            StatementKind::Label(label) => {
                let index = self.frame().labels[label];
                self.labels[index] = Some(self.kernel.code.len() as u32);
            }
            StatementKind::Registers(ty, names) => {
                for name in names {
                    let symbol = self.new_register(*ty)?;
                    self.declare(name, symbol);
                }
            }
            StatementKind::Variable(variable) => {
                let symbol = self.new_variable(variable)?;
                self.declare(&variable.name, symbol);
            }
            StatementKind::BranchTargets(_) => {}
            StatementKind::Instruction(instruction) => {
                self.place.mnemonic.clone_from(&instruction.mnemonic);
                self.place.source = statement.source.and_then(|place| {
                    let file = self.source.files.get(&place.file)?;
                    (place.line > 0).then(|| (file.clone(), place.line))
                });
                self.guard = match &instruction.guard {
                    Some((name, is_negated)) => Some((self.pred_named(name)?, *is_negated)),
                    None => None,
                };
                self.instruction(instruction)?;
            }
        }
        Ok(())
    }

    fn instruction(&mut self, instruction: &parse::Instruction) -> Result<(), LoadError> {
        let mnemonic = instruction.mnemonic.as_str();
        let modifiers: Vec<&str> = mnemonic.split('.').collect();
        let operands = instruction.operands.as_slice();
        let is_known = match modifiers[0] {
            "mbarrier" | "elect" | "setmaxnreg" | "wgmma" => self.asynchronous(&modifiers, operands)?,
            "fence" | "cp" if self.asynchronous(&modifiers, operands)? => true,
            "call" => return self.call(operands),
            "ld" | "ldu" | "st" | "cp" | "mov" | "cvta" | "prefetch" | "ldmatrix" | "isspacep" => {
                self.data(&modifiers, operands)?
            }
            "cvt" => self.convert(&modifiers[1..], operands)?,
            "bra" | "brx" | "ret" | "exit" | "trap" | "bar" | "barrier" | "shfl" | "vote" | "match"
            | "redux" | "activemask" | "membar" | "fence" | "griddepcontrol" | "atom" | "red" | "mma" => {
                self.exchange(&modifiers, operands)?
            }
            _ => self.arithmetic(&modifiers, operands)?,
        };
        if is_known { Ok(()) } else { Err(self.unsupported()) }
    }

    /// Inlines a call: `call[.uni] [(returns),] name [, (params)]`.
    fn call(&mut self, operands: &[Operand]) -> Result<(), LoadError> {
        let (returns, rest) = match operands {
            [Operand::List(returns), rest @ ..] => (returns.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let (name, params) = match rest {
            [Operand::Name(name)] => (name, &[][..]),
            [Operand::Name(name), Operand::List(params)] => (name, params.as_slice()),
            _ => return Err(self.operands("a function and its parameters")),
        };
        let error = LoadError::Call {
            line: self.place.line,
            name: name.clone(),
        };
        let source = self.source;
        let function = source
            .functions
            .iter()
            .find(|function| !function.is_entry && function.name == *name && function.body.is_some());
        let is_recursive = self.frames.iter().any(|frame| frame.name == *name);
        let (Some(function), false) = (function, is_recursive) else {
            return Err(error);
        };
        let Some(body) = &function.body else {
            return Err(error);
        };
        if self.guard.is_some()
            || returns.len() != function.returns.len()
            || params.len() != function.params.len()
        {
            return Err(error);
        }
        let mut symbols = HashMap::new();
        let formal = function.returns.iter().chain(&function.params);
        for (formal, actual) in formal.zip(returns.iter().chain(params)) {
            let Operand::Name(actual) = actual else {
                return Err(self.operands("names of .param variables"));
            };
            let symbol = self.symbol(actual)?;
            symbols.insert(formal.name.clone(), symbol);
        }
        self.function(name, body, symbols)
    }

    fn finish(mut self) -> Result<Kernel, LoadError> {
        let labels = &self.labels;
        let resolve = |label: u32| labels[label as usize].unwrap_or(u32::MAX);
        for instruction in &mut self.kernel.code {
            match &mut instruction.op {
                Op::Branch { to } => *to = resolve(*to),
                Op::BranchTable { targets, .. } => {
                    for target in targets {
                        *target = resolve(*target);
                    }
                }
                op => self.kernel.is_order_dependent |= op.depends_on_block_order(),
            }
        }
        if self
            .kernel
            .n_regs32
            .max(self.kernel.n_regs64)
            .max(self.kernel.n_preds)
            > usize::from(u16::MAX)
        {
            return Err(LoadError::TooLarge {
                kernel: self.kernel.name,
            });
        }
        let constants32 = self
            .kernel
            .constants32
            .iter()
            .map(|&(register, _)| Register::R32(register));
        let constants64 = self
            .kernel
            .constants64
            .iter()
            .map(|&(register, _)| Register::R64(register));
        self.kernel.read_first = read_first(
            &self.kernel.code,
            [self.kernel.n_regs32, self.kernel.n_regs64],
            constants32.chain(constants64),
        );
        Ok(self.kernel)
    }

    fn emit(&mut self, op: Op) {
        self.kernel.code.push(Decoded::new(self.guard, op));
        self.kernel.places.push(self.place.clone());
    }

    fn unsupported(&self) -> LoadError {
        LoadError::UnsupportedInstruction {
            line: self.place.line,
            mnemonic: self.place.mnemonic.clone(),
        }
    }

    fn operands(&self, expected: &str) -> LoadError {
        LoadError::Operands {
            line: self.place.line,
            mnemonic: self.place.mnemonic.clone(),
            expected: expected.to_owned(),
        }
    }

    fn new_label(&mut self) -> usize {
        self.labels.push(None);
        self.labels.len() - 1
    }

    fn label(&mut self, operand: &Operand) -> Result<u32, LoadError> {
        let Operand::Name(name) = operand else {
            return Err(self.operands("a label"));
        };
        match self.frame().labels.get(name) {
            Some(&index) => Ok(index as u32),
            None => Err(LoadError::UnknownName {
                line: self.place.line,
                name: name.clone(),
            }),
        }
    }

    fn declare(&mut self, name: &str, symbol: Symbol) {
        self.frame()
            .scopes
            .last_mut()
            .expect("a function has a scope")
            .insert(name.to_owned(), symbol);
    }

    fn new_register(&mut self, ty: Ty) -> Result<Symbol, LoadError> {
        let counter = match ty {
            Ty::Pred => &mut self.kernel.n_preds,
            _ if ty.bytes() == 8 => &mut self.kernel.n_regs64,
            _ => &mut self.kernel.n_regs32,
        };
        let Ok(index) = u16::try_from(*counter) else {
            return Err(LoadError::TooLarge {
                kernel: self.kernel.name.clone(),
            });
        };
        *counter += 1;
        Ok(match ty {
            Ty::Pred => Symbol::Pred(index),
            _ if ty.bytes() == 8 => Symbol::Reg64(index),
            _ => Symbol::Reg32 {
                index,
                bits: if ty.bytes() == 4 { 32 } else { 16 },
            },
        })
    }

    fn new_variable(&mut self, variable: &Variable) -> Result<Symbol, LoadError> {
        let bytes = variable.bytes.unwrap_or(0);
        let (space, end) = match variable.space {
            VariableSpace::Shared => (Space::Shared, &mut self.kernel.shared_bytes),
            _ => (Space::Local, &mut self.kernel.local_bytes),
        };
        let start = end.checked_next_multiple_of(variable.align);
        let Some((start, new_end)) = start.and_then(|start| Some((start, start.checked_add(bytes)?))) else {
            return Err(LoadError::VariablesTooLarge {
                name: variable.name.clone(),
            });
        };
        *end = new_end;
        let address = Constant::Immediate(u64::from(start));
        Ok(Symbol::Variable { space, address })
    }

    fn symbol(&mut self, name: &str) -> Result<Symbol, LoadError> {
        let frame = self.frames.last().expect("a function is being decoded");
        if let Some(symbol) = frame.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Ok(*symbol);
        }
        if let Some(&address) = self.globals.get(name) {
            return Ok(Symbol::Variable {
                space: Space::Global,
                address: Constant::Immediate(address),
            });
        }
        if let Some(&address) = self.module_shared.get(name) {
            return Ok(Symbol::Variable {
                space: Space::Shared,
                address,
            });
        }
        let source = self.source;
        let shared = source
            .variables
            .iter()
            .find(|variable| variable.space == VariableSpace::Shared && variable.name == name);
        let Some(variable) = shared else {
            return Err(LoadError::UnknownName {
                line: self.place.line,
                name: name.to_owned(),
            });
        };
        let symbol = if variable.bytes.is_none() {
            Symbol::Variable {
                space: Space::Shared,
                address: Constant::DynamicShared,
            }
        } else {
            self.new_variable(variable)?
        };
        if let Symbol::Variable { address, .. } = symbol {
            self.module_shared.insert(name.to_owned(), address);
        }
        Ok(symbol)
    }
}
