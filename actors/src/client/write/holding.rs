//! Guards for what an unfinished call holds: given back if the call fails or its future is dropped
//! [I12].

use super::super::Client;
use crate::client::plans::PlanState;
use crate::error::{Error, Result};
use crate::message::{PlanRef, Request};
use std::sync::Arc;

/// Plans of an unfinished call: given up if it fails or its future is dropped.
pub(super) struct Unfinished<'a> {
    pub(super) client: &'a Client,
    pub(super) plans: Vec<Arc<PlanState>>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.client.abandon(&self.plans);
    }
}

/// An open without an answer yet: withdrawn if its future is dropped or the answer is lost.
pub(super) struct Asked<'a> {
    pub(super) client: &'a Client,
    pub(super) request: Option<u64>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request {
            self.client.shared.slow_path.withdrawn.one();
            self.client.give_up_later(Request::Withdraw { request });
        }
    }
}

/// A grant not yet returned to the caller: given back if attaching fails or the future is dropped.
pub(super) struct Granted<'a> {
    pub(super) client: &'a Client,
    pub(super) reference: Option<PlanRef>,
    pub(super) plan: Option<Arc<PlanState>>,
}

impl Granted<'_> {
    /// Passes the registered plan to the caller.
    pub(super) fn keep(mut self) -> Result<Arc<PlanState>> {
        self.reference = None;
        self.plan.take().ok_or_else(|| Error::internal("a grant that was never registered"))
    }
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        if let Some(plan) = self.plan.take() {
            self.client.shared.plans.close(&plan);
        }
        self.client.report_abandoned(self.reference.take().into_iter().collect());
    }
}
