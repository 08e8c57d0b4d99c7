package verbs

import "fmt"

// WCStatus is the status of a completion (enum ibv_wc_status, same numbers).
// Every value except WCSuccess is an error that [errors.Is] finds in [WC.Err].
type WCStatus uint32

// Statuses, each with the condition in which an RC QP of this library reports it.
const (
	WCSuccess          WCStatus = 0  // executed
	WCLocLenErr        WCStatus = 1  // a message was longer than the receive buffer, or than the device's limit
	WCLocQPOpErr       WCStatus = 2  // inconsistency inside the QP
	WCLocEECOpErr      WCStatus = 3  // (RD only)
	WCLocProtErr       WCStatus = 4  // an SGE is outside any live region of the PD, or the region forbids the access
	WCWRFlushErr       WCStatus = 5  // the QP was in ERR, or went there before this WR was executed
	WCMWBindErr        WCStatus = 6  // (memory windows only)
	WCBadRespErr       WCStatus = 7  // the peer sent a malformed response
	WCLocAccessErr     WCStatus = 8  // an RDMA_WRITE_WITH_IMM failed here, at the receiver
	WCRemInvReqErr     WCStatus = 9  // the peer refused the request: its receive buffer is too small, the operation is not allowed, or an atomic is not aligned
	WCRemAccessErr     WCStatus = 10 // the rkey, the range or the access right is wrong at the peer
	WCRemOpErr         WCStatus = 11 // the peer could not execute the request, for a reason of its own
	WCRetryExcErr      WCStatus = 12 // the peer did not answer: dead, unreachable, or not in RTR within timeout × retries
	WCRNRRetryExcErr   WCStatus = 13 // the peer had no receive posted within the RNR retries
	WCLocRDDViolErr    WCStatus = 14 // (RD only)
	WCRemInvRDReqErr   WCStatus = 15 // (RD only)
	WCRemAbortErr      WCStatus = 16 // the peer aborted the operation
	WCInvEECNErr       WCStatus = 17 // (RD only)
	WCInvEECStateErr   WCStatus = 18 // (RD only)
	WCFatalErr         WCStatus = 19 // the device is broken
	WCRespTimeoutErr   WCStatus = 20 // a response did not arrive
	WCGeneralErr       WCStatus = 21 // anything else
	WCTMErr            WCStatus = 22 // (tag matching only)
	WCTMRndvIncomplete WCStatus = 23 // (tag matching only)
)

var statusNames = [...]string{
	"success", "local length error", "local QP operation error", "local EE context operation error",
	"local protection error", "work request flushed error", "memory window bind error", "bad response error",
	"local access error", "remote invalid request error", "remote access error", "remote operation error",
	"transport retry counter exceeded", "RNR retry counter exceeded", "local RDD violation error",
	"remote invalid RD request", "remote aborted error", "invalid EE context number", "invalid EE context state",
	"fatal error", "response timeout error", "general error", "tag matching error", "tag matching rendezvous incomplete",
}

// String describes the status in the manner of ibv_wc_status_str.
func (s WCStatus) String() string { return enumName(statusNames[:], int(s), "WCStatus") }

// Error returns the same text as String; it makes the status an error.
func (s WCStatus) Error() string { return s.String() }

// WCError is a completion whose status is not success.
type WCError struct {
	WC WC
}

// Error names the QP, the operation, the work request and the status.
func (e *WCError) Error() string {
	s := fmt.Sprintf("verbs: QP %#06x: %v of work request %#x: %v (%d)", e.WC.QPNum, e.WC.Opcode, e.WC.WRID, e.WC.Status, uint32(e.WC.Status))
	if e.WC.VendorErr != 0 {
		s += fmt.Sprintf(", vendor error %#x", e.WC.VendorErr)
	}
	return s
}

// Unwrap returns the [WCStatus].
func (e *WCError) Unwrap() error { return e.WC.Status }

func enumName(names []string, i int, kind string) string {
	if i >= 0 && i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}
