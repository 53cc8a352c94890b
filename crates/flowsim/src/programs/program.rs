//! Programs: steps of pauses and flows.

use crate::error::FlowError;

/// Flows of one class that are alike but for their routes and bytes.
#[derive(Clone, Copy, Debug)]
pub struct Flows<'a> {
    /// Keys into the table of routes, one for each flow.
    pub routes: &'a [u32],
    /// Bytes of each flow.
    pub bytes: &'a [f64],
    /// What the bytes are counted under.
    pub class: u16,
    /// Share of each flow relative to others.
    pub weight: f64,
    /// The most that each flow gets, bytes a second; infinite for no limit.
    pub limit: f64,
}

/// Equal flows of a step, merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) bytes: f64,
    pub(super) weight: f64,
    pub(super) limit: f64,
    pub(super) route: u32,
    pub(super) copies: u32,
    pub(super) class: u16,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) pause_s: f64,
    first: usize,
    end: usize,
}

/// Steps of pauses and flows, done some number of times.
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) steps: Vec<Step>,
    demands: Vec<Demand>,
    pub(super) repeat: u64,
}

impl Program {
    /// A program without steps.
    ///
    /// # Errors
    /// If it is to be done 0 times.
    pub fn new(repeat: u64) -> Result<Self, FlowError> {
        if repeat == 0 {
            return Err(FlowError::NoRepeat);
        }
        Ok(Self { steps: Vec::new(), demands: Vec::new(), repeat })
    }

    /// Begin a step with a pause of `pause_s` seconds.
    ///
    /// # Errors
    /// If the pause is no finite number of at least 0.
    pub fn step(&mut self, pause_s: f64) -> Result<(), FlowError> {
        if !pause_s.is_finite() || pause_s < 0.0 {
            return Err(FlowError::Pause(pause_s));
        }
        let at = self.demands.len();
        self.steps.push(Step { pause_s, first: at, end: at });
        Ok(())
    }

    /// Add flows to the step begun last. Equal ones are merged; those without bytes are over when they begin.
    ///
    /// # Errors
    /// If there is no step, the arrays differ in length, or a number is out of range.
    pub fn flows(&mut self, flows: &Flows<'_>) -> Result<(), FlowError> {
        if flows.routes.len() != flows.bytes.len() {
            return Err(FlowError::Uneven(flows.routes.len(), flows.bytes.len()));
        }
        if !(1e-9..=1e9).contains(&flows.weight) {
            return Err(FlowError::Weight(flows.weight));
        }
        if flows.limit.is_nan() || flows.limit <= 0.0 {
            return Err(FlowError::Limit(flows.limit));
        }
        if let Some(&bad) = flows.bytes.iter().find(|b| !b.is_finite() || **b < 0.0) {
            return Err(FlowError::Bytes(bad));
        }
        let step = self.steps.last_mut().ok_or(FlowError::NoStep)?;
        let mut each: Vec<(u32, f64)> =
            flows.routes.iter().copied().zip(flows.bytes.iter().copied()).collect();
        each.retain(|&(_, bytes)| bytes > 0.0);
        each.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        for (route, bytes) in each {
            match self.demands[step.end..].last_mut() {
                Some(last)
                    if last.route == route && last.bytes == bytes && last.copies < u32::MAX =>
                {
                    last.copies += 1;
                }
                _ => self.demands.push(Demand {
                    bytes,
                    weight: flows.weight,
                    limit: flows.limit,
                    route,
                    copies: 1,
                    class: flows.class,
                }),
            }
        }
        step.end = self.demands.len();
        Ok(())
    }

    /// Bytes that all flows of one pass through the steps move.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.demands.iter().map(|d| d.bytes * f64::from(d.copies)).sum()
    }

    /// The largest route key it names, if any.
    pub(super) fn largest_route(&self) -> Option<u32> {
        self.demands.iter().map(|d| d.route).max()
    }

    pub(super) fn demands_of(&self, step: usize) -> &[Demand] {
        &self.demands[self.steps[step].first..self.steps[step].end]
    }

    /// Whether it takes no time at any rates.
    pub(super) fn is_empty(&self) -> bool {
        self.demands.is_empty() && self.steps.iter().all(|step| step.pause_s == 0.0)
    }
}
