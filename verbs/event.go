package verbs

// EventType is the type of an asynchronous event (enum ibv_event_type, same numbers).
type EventType uint32

// Asynchronous events.
const (
	EventCQErr            EventType = 0  // CQ: overrun
	EventQPFatal          EventType = 1  // QP: went to ERR
	EventQPReqErr         EventType = 2  // QP: the peer sent an invalid request
	EventQPAccessErr      EventType = 3  // QP: the peer violated a key, range or right
	EventCommEst          EventType = 4  // QP: first message received in RTR
	EventSQDrained        EventType = 5  // QP: the send queue is drained (state SQD)
	EventPathMig          EventType = 6  // (path migration only)
	EventPathMigErr       EventType = 7  // (path migration only)
	EventDeviceFatal      EventType = 8  // the device is gone
	EventPortActive       EventType = 9  // Port
	EventPortErr          EventType = 10 // Port: down
	EventLIDChange        EventType = 11 // Port
	EventPKeyChange       EventType = 12 // Port
	EventSMChange         EventType = 13 // Port
	EventSRQErr           EventType = 14 // SRQ
	EventSRQLimitReached  EventType = 15 // SRQ: see SRQAttr.Limit
	EventQPLastWQEReached EventType = 16 // QP with an SRQ: in ERR, takes no more receives from the SRQ
	EventClientReregister EventType = 17 // Port
	EventGIDChange        EventType = 18 // Port
)

var eventNames = [...]string{"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG",
	"PATH_MIG_ERR", "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR",
	"SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE"}

// String returns the libibverbs name without its prefix.
func (t EventType) String() string { return enumName(eventNames[:], int(t), "EventType") }

// AsyncEvent is an asynchronous event (struct ibv_async_event). Type decides which of
// QP, CQ, SRQ and Port is set; an object closed in the meantime is nil.
type AsyncEvent struct {
	Type EventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	Port int
}
