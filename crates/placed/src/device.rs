//! [`Placed`] as a device that runs programs.
//!
//! Invariant: a weight and a slot have the same index on both sides, also if only one side has it.

use std::{any::Any, sync::Arc};

use tokenmill_backend::{
    Allocation, BackendError, ExecutorLimits, ForwardBatch, KvLayout, MatrixData, MemoryPlan, NetworkPart,
    NetworkShape, PageCopy, PageGroup, SequenceMemory, Side, SplitOperations, StateLayout, StepOutput,
    StepTrace, Weigh,
    program::{MatrixId, Prepared, ProgramDevice, WeightStore},
};
use tokenmill_gguf::TensorType;

use crate::{
    Placed,
    programs::{Programs, Schedules},
    schedule::unsupported,
};

impl<H: SplitOperations, D: SplitOperations> From<Placed<H, D>> for Box<dyn ProgramDevice> {
    fn from(placed: Placed<H, D>) -> Self {
        Box::new(placed)
    }
}

impl<H: SplitOperations, D: SplitOperations> Weigh for Placed<H, D> {
    fn device(&self) -> &'static str {
        D::NAME
    }

    fn supports(&self, ty: TensorType) -> bool {
        self.host.backend.supports(ty) || self.device.backend.supports(ty)
    }

    fn is_split(&self) -> bool {
        true
    }

    fn works_apart(&self) -> bool {
        false
    }

    fn bytes_at(&self, side: Side, part: NetworkPart, allocation: &Allocation<'_>) -> usize {
        let own_network;
        let mut own = *allocation;
        let mut is_here = self.placement.sides(part).has(side);
        match &mut own {
            Allocation::Matrix { usage, .. } => {
                let own_usage = self.placement.usage_on(side, part, *usage);
                is_here = own_usage.is_some();
                *usage = own_usage.unwrap_or(*usage);
            }
            Allocation::Workspace(network, _) => {
                own_network = self.placement.network_of(side, network);
                *network = &own_network;
            }
            _ => {}
        }
        match side {
            _ if !is_here => 0,
            Side::Host => self.host.backend.bytes_of(&own),
            Side::Device => self.device.backend.bytes_of(&own),
        }
    }

    fn slots_used(&self, side: Side, prepared: &Prepared) -> Result<Vec<bool>, BackendError> {
        Ok(Schedules::new(prepared, &self.placement)?.slots_used(side))
    }
}

impl<H: SplitOperations, D: SplitOperations> ProgramDevice for Placed<H, D> {
    fn weigh(&self) -> &dyn Weigh {
        self
    }

    fn trace(&self) -> Option<StepTrace> {
        self.device.backend.trace()
    }

    fn prepare(
        &mut self,
        network: &NetworkShape,
        limits: &ExecutorLimits,
        kv: &KvLayout,
        plan: &MemoryPlan,
    ) -> Result<(), BackendError> {
        let of = |side| {
            (
                self.placement.network_of(side, network),
                self.placement.kv_layout_of(side, kv),
            )
        };
        let [(host_network, host_kv), (device_network, device_kv)] = Side::ALL.map(of);
        self.is_encoder = limits.is_encoder;
        // A lack of memory is detected before anything is allocated.
        (self.device.backend).prepare(&device_network, limits, &device_kv, plan)?;
        let host_plan = plan.on_host.as_deref().unwrap_or(plan);
        (self.host.backend).prepare(&host_network, limits, &host_kv, host_plan)
    }

    fn share(&mut self, _: &dyn ProgramDevice, _: &[MatrixId]) -> Result<(), BackendError> {
        Err(unsupported("matrices of another network"))
    }

    fn weights(&mut self) -> &mut dyn WeightStore {
        self
    }

    fn alloc(
        &mut self,
        prepared: Prepared,
        kv: &KvLayout,
        states: Option<&StateLayout>,
    ) -> Result<(), BackendError> {
        let programs = Programs::new(prepared, &self.placement)?;
        let [host, device] = Side::ALL.map(|side| self.placement.kv_layout_of(side, kv));
        self.groups = [host.groups.clone(), device.groups.clone()];
        self.host.backend.alloc_kv(&host)?;
        self.device.backend.alloc_kv(&device)?;
        if let Some(states) = states {
            let [host, device] = Side::ALL.map(|side| self.placement.state_layout_of(side, states));
            if !host.layers.is_empty() {
                self.host.backend.alloc_states(&host)?;
            }
            if !device.layers.is_empty() {
                self.device.backend.alloc_states(&device)?;
            }
        }
        self.host.alloc(programs.slots_on(Side::Host))?;
        self.device.alloc(programs.slots_on(Side::Device))?;
        self.programs = Some(Arc::new(programs));
        Ok(())
    }

    fn run_step(&mut self, batch: &ForwardBatch) -> Result<(), BackendError> {
        self.begin(batch)?;
        self.run()
    }

    fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError> {
        self.read_step(output)
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), BackendError> {
        if self.groups[Side::Host as usize].contains(&group) {
            self.host.backend.copy_pages(group, copies)?;
        }
        if self.groups[Side::Device as usize].contains(&group) {
            self.device.backend.copy_pages(group, copies)?;
        }
        Ok(())
    }

    fn sequences(&self) -> &dyn SequenceMemory {
        self
    }

    fn sequences_mut(&mut self) -> &mut dyn SequenceMemory {
        self
    }

    fn backend(&self) -> &dyn Any {
        self
    }

    fn backend_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl<H: SplitOperations, D: SplitOperations> WeightStore for Placed<H, D> {
    fn enter(&mut self, part: NetworkPart) {
        self.part = part;
    }

    fn store_matrix(&mut self, data: &MatrixData<'_>) -> Result<(), BackendError> {
        let usages = Side::ALL.map(|side| self.placement.usage_on(side, self.part, data.usage));
        let [host, device] = usages.map(|usage| usage.map(|usage| MatrixData { usage, ..*data }));
        self.host.store_matrix(host.as_ref())?;
        self.device.store_matrix(device.as_ref())
    }

    fn share_matrix(&mut self) {
        unreachable!("nothing is shared");
    }

    fn store_vector(&mut self, values: &[f32]) -> Result<(), BackendError> {
        let sides = self.placement.sides(self.part);
        (self.host).store_vector(sides.has(Side::Host).then_some(values))?;
        (self.device).store_vector(sides.has(Side::Device).then_some(values))
    }
}

/// The memory of sequences is on two sides and not read outside.
impl<H: SplitOperations, D: SplitOperations> SequenceMemory for Placed<H, D> {}
