//! Congestion control: how fast a connection sends. One file a controller.
//!
//! Arrives: an [`AckEvent`] for each acknowledgement. Leaves: a pacing rate and a window ([`Control`]).
//! Must not know: packets, extents, the wire.
//!
//! | file | contents |
//! |---|---|
//! | [`controller`] | the trait [`Controller`] and the data that it exchanges with a connection |
//! | [`registry`] | the user's option `--mode`: name, constructor and whether the mode needs a grant |
//! | [`fair`], [`fast_start`], [`modest`], [`aggressive`] | the controllers |
//! | [`null`] | an annotated template for a new controller |
//! | [`startup`] | the search for the path's capacity that they share |
//! | [`cubic`], [`tcp_friendly`] | the window beside flows that fill buffers |
//! | [`queue_drain`] | the synchronised queue drain, comparable to BBR's ProbeRTT |
//! | [`rounds`], [`delivery_rate`], [`loss_floor`], [`detectors`] | measurements and evidence of congestion |
//! | [`coupled`] | several connections of one copy that take the share of one |
//! | [`grant`] | the server's rules: which user gets which mode |
//!
//! The papers on HpFP state the aims of the four modes (JHPCN report jh160034, section 6) but not their equations.
//! The equations here are ours; each file states its own. `docs/how-to/write-a-congestion-controller.md` explains how
//! to add one.

pub mod aggressive;
pub mod controller;
pub mod coupled;
pub mod cubic;
pub mod delivery_rate;
pub mod detectors;
pub mod fair;
pub mod fast_start;
pub mod grant;
pub mod loss_floor;
pub mod modest;
pub mod null;
pub mod queue_drain;
pub mod registry;
pub mod rounds;
pub mod startup;
pub mod tcp_friendly;

pub use controller::{AckEvent, Control, Controller, Delivery, PathState};
pub use registry::Mode;
