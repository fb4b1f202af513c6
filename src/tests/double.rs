//! Stores that tests put in the place of others. They know operations at run time only.

use std::any::Any;
use std::fmt;
use std::future::pending;
use std::time::Duration;

use crate::protocol::rules::{ByRules, Rules, Run};
use crate::protocol::script::{Declared, PubSubMode, ReplyError, ScriptCall};
use crate::protocol::{
    Answer, Call, CallKind, Connections, KeepAlive, OnAnswer, Operation, Priority, SetLabel, Stamp,
};
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;

/// A store that is made for a test.
pub(crate) trait Double: Connections {
    fn call(&self, operation: AnyOperation) -> Call<AnyReply>;

    fn keep_label(&self, call: SetLabel, every: Duration, heard: OnAnswer) -> KeepAlive {
        let _ = (call, every, heard);
        Box::pin(pending())
    }
}

/// Makes a call to a store of a test.
pub(crate) fn call<O: ByRules>(double: &dyn Double, operation: O) -> Call<O::Reply> {
    let call = double.call(AnyOperation::new(operation));
    Box::pin(async move {
        let Answer { on, at, reply } = call.await?;
        let reply = *reply.0.into_any().downcast().expect("the reply to this call");
        Ok(Answer { on, at, reply })
    })
}

/// An operation of any type, and its reply.
#[derive(Debug)]
pub(crate) struct AnyOperation(Box<dyn Erased>);
#[derive(Debug)]
pub(crate) struct AnyReply(Box<dyn ErasedReply>);

impl AnyOperation {
    pub(crate) fn new(operation: impl ByRules) -> AnyOperation {
        AnyOperation(Box::new(operation))
    }

    /// The operation, if it is of this type.
    pub(crate) fn get<O: ByRules>(&self) -> Option<&O> {
        // The traits are also implemented for the box itself.
        (*self.0).as_any().downcast_ref()
    }
}

impl AnyReply {
    /// The reply, if it is of this type.
    pub(crate) fn get<T: 'static>(&self) -> Option<&T> {
        (*self.0).as_any().downcast_ref()
    }

    pub(crate) fn get_mut<T: 'static>(&mut self) -> Option<&mut T> {
        (*self.0).as_any_mut().downcast_mut()
    }
}

impl Clone for AnyOperation {
    fn clone(&self) -> AnyOperation {
        self.0.copy()
    }
}

impl Operation for AnyOperation {
    type Reply = AnyReply;
    const KIND: CallKind = CallKind::Other;

    fn key(&self) -> &str {
        self.0.key()
    }

    fn priority(&self) -> Priority {
        self.0.priority()
    }

    fn floor(&self) -> Option<Fence> {
        self.0.floor()
    }

    fn stamp(&self) -> Option<&dyn Stamp> {
        self.0.stamp()
    }

    fn script_call(&self, _: PubSubMode, _: Declared) -> ScriptCall {
        unreachable!("no test puts a store before a server")
    }

    fn read(&self, _: &str) -> Result<(ServerTime, AnyReply), ReplyError> {
        unreachable!("no test puts a store before a server")
    }
}

impl ByRules for AnyOperation {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> AnyReply {
        self.0.by_rules(rules, run)
    }
}

trait Erased: fmt::Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn copy(&self) -> AnyOperation;
    fn key(&self) -> &str;
    fn priority(&self) -> Priority;
    fn floor(&self) -> Option<Fence>;
    fn stamp(&self) -> Option<&dyn Stamp>;
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> AnyReply;
}

impl<O: ByRules> Erased for O {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn copy(&self) -> AnyOperation {
        AnyOperation::new(self.clone())
    }

    fn key(&self) -> &str {
        Operation::key(self)
    }

    fn priority(&self) -> Priority {
        Operation::priority(self)
    }

    fn floor(&self) -> Option<Fence> {
        Operation::floor(self)
    }

    fn stamp(&self) -> Option<&dyn Stamp> {
        Operation::stamp(self)
    }

    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> AnyReply {
        AnyReply(Box::new(ByRules::by_rules(self, rules, run)))
    }
}

trait ErasedReply: fmt::Debug + Send {
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<T: fmt::Debug + Send + 'static> ErasedReply for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
