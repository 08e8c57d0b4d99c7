// Package qmp implements QMP, the message passing API of lattice QCD codes, in Go: all of the QMP
// 1.2 document (C and C++) and the additions of version 2. It is built on package channel, whose
// handles carry its messages.
//
//	_, err := qmp.Init(&os.Args, qmp.ThreadMultiple)          // Finalize at the end
//	memory, err := qmp.DeclareMsgMem(face)                    // or DeclareStridedMsgMem, …
//	send, err := qmp.DeclareSendRelative(memory, axis, +1, 0) // or DeclareReceiveRelative
//	err = send.Start()                                        // as often as needed; then Wait
//	err = qmp.SumDoubleArray(sums)
//
// A program imports the providers that reach its peers, as with package channel:
//
//	import _ "github.com/sluice-hpc/sluice/verbs/all"
//
// # Ported code
//
// Names are those of C without the prefix and without Get: QMP_declare_send_relative is
// [DeclareSendRelative]. The functions of this package refer to the machine of [Init] and its
// default communicator. Each is also a method of [Machine] or of [Comm]; the latter is the
// QMP_comm_ variant. The table at the end lists every name.
//
// Void pointers have become slices: [DeclareMsgMem] and similar functions take slices of any type
// without pointers, while sizes and strides remain in bytes. A C function that returns a status
// returns an error here: an [*Error] with the [Status] (number and words of C) that wraps the
// underlying error. Initially no error function is set, so no error is printed and the process does
// not exit; pass [PrintAndExit] to [SetErrorFunction] for that. Declared handles must be closed, as
// they must be freed in C.
//
// # Nodes, machine, topology
//
// A node is a process that a launcher has started (docs/launchers.md): a rank of the job. The
// machine is a switch, with 0 dimensions, unless the command line says that it is a grid. A
// topology ([Comm.DeclareLogicalTopology] or [Comm.LayoutGrid]) is a periodic grid of nodes. It
// does not change their numbers, which are lexicographic in the grid, axis 0 fastest, or in the
// order given by a map. Until a topology is declared, queries about it describe the allocated grid.
// Declaring is local: all nodes must declare the same topology.
//
// Init removes these options from the arguments:
//
//	-qmp-geom d0 d1 ... | native   the allocated machine is a grid; native: as it is, a switch
//	-qmp-alloc-map a0 a1 ...       the order of axes in which that grid numbers nodes
//	-qmp-logic-map a0 a1 ...       the same for topologies declared without an order
//	-qmp-job n0 n1 ...             the number of independent jobs along each axis; on a
//	                               switch a single number
//
// An option takes all numbers that follow it; arguments after "--" belong to the program.
//
// # Messages
//
// A stream is identified by two nodes of a communicator and a kind of message: in one direction
// along one axis, or by node number. On each stream the k-th send that is started meets the k-th
// receive. A send in direction + meets the receive from direction - at the node it goes to, so the
// messages of the two directions of an axis are never mixed up, even with one or two nodes on the
// axis. Nor are messages of different axes, of relative handles and handles by number
// ([Comm.DeclareSendTo]), or of different communicators. The 1.2 document asks for a relative
// handle and one by number to be the same; implementations keep them apart, and so does this one.
// The two ends of a message must have the same length; their layouts may differ.
//
// Declaring and starting do not block. A node may send messages to itself. Priority 0 is the
// highest, and [DefaultPriority]. The handle owns the bytes of a message from Start until Wait or
// IsComplete reports completion. Start and Wait cost the same as in package channel and do not
// allocate.
//
// A multiple ([DeclareMultiple]) owns nothing: [Handle.Close] closes only the multiple, as in 1.2,
// and [Handle.CloseAll] also its members, as in 2. An active handle cannot be started, changed or
// closed; the attempt returns [StatusInvalidOp].
//
// # Global operations
//
// All nodes of a communicator call global operations in the same order. Results have the same bits
// at all nodes. [Comm.SumDoubleExtended] and [Comm.SumExact] are exact until they round once; they
// also replace the sums of long double, which Go lacks. [Comm.BinaryReduction] applies inout =
// inout op in strictly in the order of the nodes.
//
// # Names
//
// The names of C and C++ and their equivalents here. A name with a dot is a method.
//
// Job and machine:
//
//	QMP_init_msg_passing                          Init
//	QMP::init                                     Init
//	QMP_is_initialized                            IsInitialized
//	QMP_finalize_msg_passing                      Finalize
//	QMP::finalize                                 Finalize
//	QMP_abort                                     Abort
//	QMP_abort_string                              AbortString
//	QMP_smpaddr_t                                 SMPAddress, WithSMP
//	QMP_smpaddr_type_t                            SMPAddress, WithSMP
//	QMP_SMP_ONE_ADDRESS                           SMPOneAddress
//	QMP_SMP_MULTIPLE_ADDRESS                      SMPMultipleAddress
//	QMP_thread_level_t                            ThreadLevel
//	QMP_THREAD_SINGLE                             ThreadSingle
//	QMP_THREAD_FUNNELED                           ThreadFunneled
//	QMP_THREAD_SERIALIZED                         ThreadSerialized
//	QMP_THREAD_MULTIPLE                           ThreadMultiple
//	QMP_get_SMP_count                             SMPCount
//	QMP::getSMPCount                              SMPCount
//	QMP_get_msg_passing_type                      MsgPassingType
//	QMP::getMsgPassingType                        MsgPassingType
//	QMP_ictype_t                                  Interconnect
//	QMP_SWITCH                                    Switch
//	QMP_GRID                                      Grid
//	QMP_MESH                                      Mesh
//	QMP_FATTREE                                   FatTree
//	QMP_get_number_of_nodes                       NumberOfNodes
//	QMP::getNumberOfNodes                         NumberOfNodes
//	QMP_comm_get_number_of_nodes                  Comm.NumberOfNodes
//	QMP_get_node_number                           NodeNumber
//	QMP::getNodeNumber                            NodeNumber
//	QMP_comm_get_node_number                      Comm.NodeNumber
//	QMP_is_primary_node                           IsPrimaryNode
//	QMP_comm_is_primary_node                      Comm.IsPrimaryNode
//	QMP_get_number_of_jobs                        NumberOfJobs
//	QMP_get_job_number                            JobNumber
//	QMP_get_number_of_job_geometry_dimensions     NumberOfJobGeometryDimensions
//	QMP_get_job_geometry                          JobGeometry
//	QMP_get_allocated_number_of_dimensions        AllocatedNumberOfDimensions
//	QMP::getAllocatedNumberOfDimensions           AllocatedNumberOfDimensions
//	QMP_get_allocated_dimensions                  AllocatedDimensions
//	QMP::getAllocatedDimensions                   AllocatedDimensions
//	QMP_get_allocated_coordinates                 AllocatedCoordinates
//	QMP::getAllocatedCoordinates                  AllocatedCoordinates
//	QMP_io_node                                   IONode
//	QMP_master_io_node                            MasterIONode
//
// Communicators:
//
//	QMP_comm_t                                    Comm
//	QMP_comm_get_allocated                        AllocatedComm
//	QMP_comm_set_allocated                        SetAllocatedComm
//	QMP_comm_get_job                              JobComm
//	QMP_comm_set_job                              SetJobComm
//	QMP_comm_get_default                          DefaultComm
//	QMP_comm_set_default                          SetDefaultComm
//	QMP_comm_split                                Comm.Split
//	QMP_comm_free                                 Comm.Free
//	QMP_comm_get_number_of_colors                 Comm.NumberOfColors
//	QMP_comm_get_color                            Comm.Color
//	QMP_comm_get_key                              Comm.Key
//	QMP_get_hidden_comm                           Comm.Group
//
// Topology and layout:
//
//	QMP_declare_logical_topology                  DeclareLogicalTopology
//	QMP::declareLogicalTopology                   DeclareLogicalTopology
//	QMP_comm_declare_logical_topology             Comm.DeclareLogicalTopology
//	QMP_declare_logical_topology_map              DeclareLogicalTopologyMap
//	QMP_comm_declare_logical_topology_map         Comm.DeclareLogicalTopologyMap
//	QMP_logical_topology_is_declared              LogicalTopologyIsDeclared
//	QMP::logicalTopologyIsDeclared                LogicalTopologyIsDeclared
//	QMP_comm_logical_topology_is_declared         Comm.LogicalTopologyIsDeclared
//	QMP_get_logical_number_of_dimensions          LogicalNumberOfDimensions
//	QMP::getLogicalNumberOfDimensions             LogicalNumberOfDimensions
//	QMP_comm_get_logical_number_of_dimensions     Comm.LogicalNumberOfDimensions
//	QMP_get_logical_dimensions                    LogicalDimensions
//	QMP::getLogicalDimensions                     LogicalDimensions
//	QMP_comm_get_logical_dimensions               Comm.LogicalDimensions
//	QMP_get_logical_coordinates                   LogicalCoordinates
//	QMP::getLogicalCoordinates                    LogicalCoordinates
//	QMP_comm_get_logical_coordinates              Comm.LogicalCoordinates
//	QMP_get_logical_coordinates_from              LogicalCoordinatesFrom
//	QMP::getLogicalCoordinatedFrom                LogicalCoordinatesFrom
//	QMP_comm_get_logical_coordinates_from         Comm.LogicalCoordinatesFrom
//	QMP_get_logical_coordinates_from2             LogicalCoordinatesFrom
//	QMP_comm_get_logical_coordinates_from2        Comm.LogicalCoordinatesFrom
//	QMP_get_node_number_from                      NodeNumberFrom
//	QMP::getNodeNumberFrom                        NodeNumberFrom
//	QMP_comm_get_node_number_from                 Comm.NodeNumberFrom
//	QMP_layout_grid                               LayoutGrid, Comm.LayoutGrid
//	QMP::layoutGrid                               LayoutGrid, Comm.LayoutGrid
//	QMP_get_subgrid_dimensions                    SubgridDimensions, Comm.SubgridDimensions
//	QMP::getSubgridDimensions                     SubgridDimensions, Comm.SubgridDimensions
//	QMP_get_number_of_subgrid_sites               NumberOfSubgridSites, Comm.NumberOfSubgridSites
//
// Memory:
//
//	QMP_mem_t                                     Memory
//	QMP_allocate_memory                           AllocateMemory
//	QMP_allocate_aligned_memory                   AllocateAlignedMemory
//	QMP::allocateAlignedMemory                    AllocateAlignedMemory
//	QMP_get_memory_pointer                        Memory.Bytes, View
//	QMP_free_memory                               Memory.Close
//	QMP_free_aligned_memory                       Memory.Close
//	QMP::freeAlignedMemory                        Memory.Close
//	QMP_ALIGN_ANY                                 AlignAny
//	QMP_ALIGN_DEFAULT                             AlignDefault
//	QMP_MEM_NONCACHE                              MemNonCache
//	QMP_MEM_COMMS                                 MemComms
//	QMP_MEM_FAST                                  MemFast
//	QMP_MEM_DEFAULT                               MemDefault
//	QMP_msgmem_t                                  MsgMem
//	QMP::MessageMemory                            MsgMem
//	QMP_declare_msgmem                            DeclareMsgMem
//	QMP_declare_strided_msgmem                    DeclareStridedMsgMem
//	QMP_declare_strided_array_msgmem              DeclareStridedArrayMsgMem
//	QMP_declare_indexed_msgmem                    DeclareIndexedMsgMem
//	MessageMemory::MessageMemory                  DeclareStridedMsgMem, DeclareStridedArrayMsgMem
//	MessageMemory::Init                           MsgMem.Init
//	QMP_free_msgmem                               MsgMem.Free
//	MessageMemory::~MessageMemory                 MsgMem.Free
//
// Messages:
//
//	QMP_msghandle_t                               Handle
//	QMP::MessageOperation                         Handle
//	QMP::SingleOperation                          Handle
//	QMP::MultiOperation                           Handle
//	SingleOperation::SingleOperation              Handle
//	MultiOperation::MultiOperation                Handle
//	QMP_declare_send_relative                     DeclareSendRelative
//	QMP_comm_declare_send_relative                Comm.DeclareSendRelative
//	QMP_declare_receive_relative                  DeclareReceiveRelative
//	QMP_comm_declare_receive_relative             Comm.DeclareReceiveRelative
//	QMP_declare_send_to                           DeclareSendTo
//	QMP_comm_declare_send_to                      Comm.DeclareSendTo
//	QMP_declare_receive_from                      DeclareReceiveFrom
//	QMP_comm_declare_receive_from                 Comm.DeclareReceiveFrom
//	SingleOperation::declareSend                  DeclareSendRelative, DeclareSendTo
//	SingleOperation::declareReceive               DeclareReceiveRelative, DeclareReceiveFrom
//	SIGN                                          Plus, Minus
//	PLUS                                          Plus
//	MINUS                                         Minus
//	DEFAULT_PRIORITY                              DefaultPriority
//	QMP_declare_multiple                          DeclareMultiple
//	MultiOperation::init                          DeclareMultiple
//	QMP_declare_send_recv_pairs                   DeclareSendRecvPairs
//	QMP_change_address                            Handle.ChangeAddress
//	QMP_change_address_multiple                   Handle.ChangeAddressMultiple
//	QMP_clear_to_send                             Handle.ClearToSend
//	QMP_clear_to_send_t                           ClearToSend
//	QMP_CTS_DISABLED                              CTSDisabled
//	QMP_CTS_NOT_READY                             CTSNotReady
//	QMP_CTS_READY                                 CTSReady
//	QMP_free_msghandle                            Handle.Close, Handle.CloseAll
//	SingleOperation::~SingleOperation             Handle.Close, Handle.CloseAll
//	MultiOperation::~MultiOperation               Handle.Close, Handle.CloseAll
//	QMP_start                                     Handle.Start
//	MessageOperation::start                       Handle.Start
//	SingleOperation::start                        Handle.Start
//	MultiOperation::start                         Handle.Start
//	QMP_is_complete                               Handle.IsComplete
//	MessageOperation::isComplete                  Handle.IsComplete
//	SingleOperation::isComplete                   Handle.IsComplete
//	MultiOperation::isComplete                    Handle.IsComplete
//	QMP_wait                                      Handle.Wait
//	MessageOperation::wait                        Handle.Wait
//	SingleOperation::wait                         Handle.Wait
//	MultiOperation::wait                          Handle.Wait
//	QMP_wait_all                                  WaitAll
//
// Global operations:
//
//	QMP_barrier                                   Barrier
//	QMP_comm_barrier                              Comm.Barrier
//	QMP_wait_for_barrier                          WaitForBarrier, Comm.WaitForBarrier
//	QMP::waitForBarrier                           WaitForBarrier, Comm.WaitForBarrier
//	QMP_broadcast                                 Broadcast
//	QMP::broadcast                                Broadcast
//	QMP_comm_broadcast                            Comm.Broadcast
//	QMP_sum_int                                   SumInt
//	QMP::sumInt                                   SumInt
//	QMP_comm_sum_int                              Comm.SumInt
//	QMP_sum_uint64_t                              SumUint64
//	QMP_comm_sum_uint64_t                         Comm.SumUint64
//	QMP_sum_float                                 SumFloat
//	QMP::sumFloat                                 SumFloat
//	QMP_comm_sum_float                            Comm.SumFloat
//	QMP_sum_double                                SumDouble
//	QMP::sumDouble                                SumDouble
//	QMP_comm_sum_double                           Comm.SumDouble
//	QMP_sum_long_double                           SumDoubleExtended
//	QMP_comm_sum_long_double                      Comm.SumDoubleExtended
//	QMP_sum_double_extended                       SumDoubleExtended
//	QMP_comm_sum_double_extended                  Comm.SumDoubleExtended
//	QMP_sum_float_array                           SumFloatArray
//	QMP::sumFloatArray                            SumFloatArray
//	QMP_comm_sum_float_array                      Comm.SumFloatArray
//	QMP_sum_double_array                          SumDoubleArray
//	QMP::sumDoubleArray                           SumDoubleArray
//	QMP_comm_sum_double_array                     Comm.SumDoubleArray
//	QMP_sum_long_double_array                     SumDoubleExtendedArray
//	QMP_comm_sum_long_double_array                Comm.SumDoubleExtendedArray
//	QMP_max_float                                 MaxFloat
//	QMP::maxFloat                                 MaxFloat
//	QMP_comm_max_float                            Comm.MaxFloat
//	QMP_max_double                                MaxDouble
//	QMP::maxDouble                                MaxDouble
//	QMP_comm_max_double                           Comm.MaxDouble
//	QMP_min_float                                 MinFloat
//	QMP::minFloat                                 MinFloat
//	QMP_comm_min_float                            Comm.MinFloat
//	QMP_min_double                                MinDouble
//	QMP::minDouble                                MinDouble
//	QMP_comm_min_double                           Comm.MinDouble
//	QMP::maxInt                                   MaxInt, Comm.MaxInt
//	QMP::minInt                                   MinInt, Comm.MinInt
//	QMP_xor_ulong                                 XorUint64
//	QMP_comm_xor_ulong                            Comm.XorUint64
//	QMP_global_xor                                XorInt, Comm.XorInt
//	QMP::globalXor                                XorUint64
//	QMP_comm_alltoall                             Comm.Alltoall
//	QMP_binary_reduction                          BinaryReduction
//	QMP::binaryReduction                          BinaryReduction
//	QMP_comm_binary_reduction                     Comm.BinaryReduction
//	QMP_binary_func                               func
//
// Errors:
//
//	QMP_status_t                                  Status, Error
//	QMP_error_string                              ErrorString
//	QMP::errorString                              ErrorString
//	QMP_get_error_number                          Handle.ErrorNumber, LastError
//	MessageOperation::getErrorNumber              Handle.ErrorNumber, LastError
//	SingleOperation::getErrorNumber               Handle.ErrorNumber, LastError
//	MultiOperation::getErrorNumber                Handle.ErrorNumber, LastError
//	QMP_get_error_string                          Handle.ErrorString, LastError
//	MessageOperation::getErrorString              Handle.ErrorString, LastError
//	SingleOperation::getErrorString               Handle.ErrorString, LastError
//	MultiOperation::getErrorString                Handle.ErrorString, LastError
//	QMP_set_error_function                        SetErrorFunction
//	ERRFUNCPTR_t                                  func
//	QMP_SUCCESS                                   StatusSuccess
//	QMP_ERROR                                     StatusError
//	QMP_NOT_INITED                                StatusNotInited
//	QMP_RTENV_ERR                                 StatusRTEnvErr
//	QMP_CPUINFO_ERR                               StatusCPUInfoErr
//	QMP_NODEINFO_ERR                              StatusNodeInfoErr
//	QMP_NOMEM_ERR                                 StatusNoMemErr
//	QMP_MEMSIZE_ERR                               StatusMemSizeErr
//	QMP_HOSTNAME_ERR                              StatusHostnameErr
//	QMP_INITSVC_ERR                               StatusInitSvcErr
//	QMP_TOPOLOGY_EXISTS                           StatusTopologyExists
//	QMP_CH_TIMEOUT                                StatusChTimeout
//	QMP_NOTSUPPORTED                              StatusNotSupported
//	QMP_SVC_BUSY                                  StatusSvcBusy
//	QMP_BAD_MESSAGE                               StatusBadMessage
//	QMP_INVALID_ARG                               StatusInvalidArg
//	QMP_INVALID_TOPOLOGY                          StatusInvalidTopology
//	QMP_NONEIGHBOR_INFO                           StatusNoNeighborInfo
//	QMP_MEMSIZE_TOOBIG                            StatusMemSizeTooBig
//	QMP_BAD_MEMORY                                StatusBadMemory
//	QMP_NO_PORTS                                  StatusNoPorts
//	QMP_NODE_OUTRANGE                             StatusNodeOutRange
//	QMP_CHDEF_ERR                                 StatusChDefErr
//	QMP_MEMUSED_ERR                               StatusMemUsedErr
//	QMP_INVALID_OP                                StatusInvalidOp
//	QMP_TIMEOUT                                   StatusTimeout
//
// Output, time, version:
//
//	QMP_printf                                    Printf
//	QMP_fprintf                                   Fprintf
//	QMP_info                                      Infof
//	QMP_error                                     Errorf
//	QMP_verbose                                   Verbose
//	QMP_profcontrol                               ProfControl
//	QMP_time                                      Time
//	QMP_get_total_qmp_time                        TotalTime
//	QMP_reset_total_qmp_time                      ResetTotalTime
//	QMP_version_str                               VersionString
//	QMP_version_int                               VersionInt
//
// Types:
//
//	QMP_bool_t                                    bool
//	QMP_TRUE                                      true
//	QMP_FALSE                                     false
//	QMP_u32_t                                     int
//	QMP_s32_t                                     int
//	QMP_s64_t                                     int
//	QMP_u64_t                                     uint64
//	QMP_float_t                                   float32
//	QMP_double_t                                  float64
package qmp
